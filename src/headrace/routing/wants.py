"""What a request asks of the route: quality, first token, speed, cost, and which models; read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from headrace.errors import RequestError

_PREFIX = "x-headrace-"
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?|\.[0-9]{1,15}", re.ASCII)

Share = Annotated[float, Meta(gt=0, le=1)]
Milliseconds = Annotated[float, Meta(gt=0, le=1e8)]
Speed = Annotated[float, Meta(gt=0, le=1e6)]
Money = Annotated[float, Meta(ge=0, le=1e9)]
"""In the currency of the prices in headrace.toml."""
ModelNames = Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(min_length=1, max_length=64)]


class WantsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The field `headrace` of a request's body."""

    quality: Share | None = None
    """Share of the best model's expected quality."""
    max_first_token_ms: Milliseconds | None = None
    min_tokens_per_second: Speed | None = None
    max_cost: Money | None = None
    models: ModelNames | None = None


HEADERS = tuple(_PREFIX + field.replace("_", "-") for field in WantsBody.__struct_fields__)
"""The same as headers."""


@dataclass(frozen=True)
class Wants:
    """What is asked for; None where nothing is.

    `quality`: share of the best model's, above 0 up to 1. `first_token`: at most so many seconds.
    `tokens_per_second`: at least so many, after the first token. `cost`: at most so much, in the currency of
    the prices. `models`: only these.
    """

    quality: float | None = None
    first_token: float | None = None
    tokens_per_second: float | None = None
    cost: float | None = None
    models: tuple[str, ...] | None = None

    def or_else(self, defaults: Wants) -> Wants:
        """The same, with the defaults where nothing is asked for."""
        return Wants(
            defaults.quality if self.quality is None else self.quality,
            defaults.first_token if self.first_token is None else self.first_token,
            defaults.tokens_per_second if self.tokens_per_second is None else self.tokens_per_second,
            defaults.cost if self.cost is None else self.cost,
            defaults.models if self.models is None else self.models,
        )


def wants_of(headers: Mapping[str, str], body: WantsBody | None) -> Wants:
    """What the headers x-headrace-… (names in lower case) and the body ask for; the body beats a header.

    Raises RequestError that names the header.
    """
    asked = Wants(
        _number(headers, "quality", 1.0, least_excluded=True),
        _seconds(_number(headers, "max-first-token-ms", 1e8, least_excluded=True)),
        _number(headers, "min-tokens-per-second", 1e6, least_excluded=True),
        _number(headers, "max-cost", 1e9, least_excluded=False),
        _names(headers),
    )
    if body is None:
        return asked
    return Wants(
        body.quality,
        _seconds(body.max_first_token_ms),
        body.min_tokens_per_second,
        body.max_cost,
        None if body.models is None else tuple(body.models),
    ).or_else(asked)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _number(headers: Mapping[str, str], name: str, most: float, *, least_excluded: bool) -> float | None:
    header = _PREFIX + name
    text = headers.get(header)
    if text is None:
        return None
    value = float(text) if _NUMBER.fullmatch(text.strip()) else -1.0
    if value < 0 or value > most or (least_excluded and value == 0):
        bound = "above 0" if least_excluded else "of at least 0"
        raise RequestError(
            f"{header}: expected a number {bound} and at most {most:g}, not {text!r:.60}", header
        )
    return value


def _names(headers: Mapping[str, str]) -> tuple[str, ...] | None:
    header = _PREFIX + "models"
    text = headers.get(header)
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(names) > 64 or max(map(len, names)) > 128:
        raise RequestError(f"{header}: expected names of models with commas between", header)
    return names
