"""Numbers on the command line, in the environment and in headrace.toml, and what is said of a wrong one."""

from __future__ import annotations

import math
from typing import Any

import click


class WholeNumber(click.IntRange):
    """A whole number, within bounds where given."""

    def _describe_range(self) -> str:
        return super()._describe_range() if self.min is not None or self.max is not None else ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(_expected("a whole number", self, value), param, ctx)
        if not _within(number, self):
            self.fail(_expected("a whole number", self, value), param, ctx)
        return number


class FiniteNumber(click.FloatRange):
    """A number within bounds where given; infinity and "not a number", which are in many ranges, are none."""

    def _describe_range(self) -> str:
        return super()._describe_range() if self.min is not None or self.max is not None else ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not _within(number, self):
            self.fail(_expected("a number", self, value), param, ctx)
        return number


_Bounds = click.IntRange | click.FloatRange


def _within(number: float, bounds: _Bounds) -> bool:
    if bounds.max is not None and (number > bounds.max or (number == bounds.max and bounds.max_open)):
        return False
    return bounds.min is None or number > bounds.min or (number == bounds.min and not bounds.min_open)


def _expected(kind: str, bounds: _Bounds, value: object) -> str:
    return f"expected {kind}{_words(bounds)}, not {value!r:.60}"


def _words(bounds: _Bounds) -> str:
    if bounds.min is None:
        return ""
    if bounds.max is None:
        return f" above {bounds.min:g}" if bounds.min_open else f" of at least {bounds.min:g}"
    if bounds.min_open:
        return f" above {bounds.min:g} and {'below' if bounds.max_open else 'up to'} {bounds.max:g}"
    return f" from {bounds.min} to {bounds.max}"
