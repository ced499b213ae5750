"""Finds where a JSON value ends while it is being written, in work proportional to its text."""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class JsonScanner:
    """Follows one object, array or string to its end. Knows strings and depth, and does not check the rest:
    a model that writes `{"a": }` has still ended its object there.
    """

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def scan(self, text: str, at: int) -> int:
        """The position in `text` up to which, from `at`, it belongs to the value."""
        while at < len(text) and not self.ended:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._take(found[0])
        return at

    def _take(self, sign: str) -> None:
        if sign == "\\":
            self._escaped = True
        elif sign == '"':
            self._in_string = not self._in_string
            self.ended = self._depth == 0 and not self._in_string
        elif sign in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.ended = self._depth <= 0
