"""How much one rendering of a chat template may do: processor time, size of a value, and text made in all."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView

from headrace.errors import TemplateError

SECONDS = 0.5
"""Processor time of one rendering. A common one takes a millisecond."""
BASE_SIZE = 1_000_000
"""Characters that a value, or the whole output, may have even where the request is short …"""
SIZE_PER_INPUT = 8
"""… and the further ones for each character of the request."""
COPIES = 32
"""How many times the largest allowed value may be made in all, which bounds memory."""
MAX_BITS = 4096
"""Bits of an integer."""

# Widths of four digits, widths taken from an argument, and nested fields: how a short format writes much.
# `%` has them at once or behind the name in brackets; each alternative reads a text once.
_WIDE_FORMAT = re.compile(r"(?:%|\))[^a-zA-Z%()]*?(?:\*|\d{4})|\{[^{}:]*:[^{}]*?(?:\d{4}|\{)")

_CONTAINERS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)


def text_size(value: object, limit: int = sys.maxsize) -> int:
    """At least the characters that a value takes as text, shared parts counted again; stops past `limit`.

    An element costs one more for each container around it, which pays for indentation.
    """
    size, waiting = 0, [(value, 0)]
    while waiting and size <= limit:
        item, depth = waiting.pop()
        size += 1 + depth
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, int):
            size += item.bit_length() // 3
        elif isinstance(item, range):
            size += 8 * len(item)
        elif isinstance(item, Mapping):
            waiting.extend((part, depth + 1) for pair in item.items() for part in pair)
        elif isinstance(item, _CONTAINERS):
            waiting.extend((part, depth + 1) for part in item)
    return size


class Budget:
    """What is left for one rendering. Every method raises TemplateError where nothing is."""

    def __init__(self, input_size: int):
        """`input_size`: the `text_size` of what is rendered."""
        self._deadline = time.thread_time() + SECONDS
        self._size = BASE_SIZE + SIZE_PER_INPUT * input_size
        self._left = COPIES * self._size

    def tick(self) -> None:
        """Counts a step: a turn of a loop, a call, a filter."""
        if time.thread_time() > self._deadline:
            raise TemplateError(f"the chat template ran for more than {SECONDS} seconds")

    def spend(self, size: int) -> None:
        """Pays for making a value of `size` characters, before it is made where that can be known."""
        self._left -= size
        if size > self._size or self._left < 0:
            raise TemplateError(
                f"the chat template makes too much text, more than {self._size} characters at once"
            )

    def weigh(self, value: object) -> int:
        """`text_size` of a value, which must be within the limit for one."""
        weight = text_size(value, self._size)
        if weight > self._size:
            raise TemplateError(f"the chat template makes a value of more than {self._size} characters")
        return weight

    def check_output(self, size: int) -> None:
        """`size` characters have been written so far."""
        if size > self._size:
            raise TemplateError(f"the chat template writes too much, more than {self._size} characters")

    def check_operator(self, operator: str, left: object, right: object) -> None:
        """Pays for left + right, left * right, left ** right and left % right."""
        if operator == "%":
            if isinstance(left, str):
                self.check_format(left, right)
        elif isinstance(left, (int, float)) and isinstance(right, (int, float)):
            _check_number(operator, left, right)
        elif operator == "+":
            self.spend(self.weigh(left) + self.weigh(right))
        elif operator == "*":
            times = next((max(0, side) for side in (left, right) if isinstance(side, int)), 1)
            self.spend(times * min(self.weigh(side) for side in (left, right) if not isinstance(side, int)))

    def check_format(self, pattern: str, *values: object) -> None:
        """Pays for filling `values` into a pattern of str.format or of the % operator."""
        if _WIDE_FORMAT.search(pattern):
            raise TemplateError(
                "the chat template formats with a width of over 999, or one that is not constant"
            )
        fields = pattern.count("%") + pattern.count("{")
        self.spend(len(pattern) + 1000 * fields + fields * self.weigh(values))

    def check_replace(self, text: str, old: str, new: str) -> None:
        """Pays for text.replace(old, new)."""
        self.spend(len(text) + text.count(old) * len(new))


def _check_number(operator: str, left: float, right: float) -> None:
    bits = [side.bit_length() if isinstance(side, int) else 0 for side in (left, right)]
    grown = bits[0] * abs(right) if operator == "**" else sum(bits)
    if grown > MAX_BITS:
        raise TemplateError(f"the chat template makes an integer of more than {MAX_BITS} bits")
