"""Text that arrives in pieces, for parsers that read it as if it were whole.

A parser is a generator that yields where it needs more text (`Reading`), so its place in the text is its
place in the code. What it reads does not depend on where the pieces are cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from typing import TypeVar

from headrace.models.answers.json_scanner import JsonScanner

Result = TypeVar("Result")
Reading = Generator[None, None, Result]
"""Reads from a source: yields where the source has run dry, and returns what it read."""

SPACE = re.compile(r"\s+")


class Source:
    """The text so far; what has been read is gone."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False

    def feed(self, text: str) -> None:
        """Adds text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more text will come."""
        self._ended = True

    def peek(self) -> Reading[str]:
        """The next character, which stays; "" at the end of all text."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def take(self) -> str:
        """The character that `peek` showed."""
        self._at += 1
        return self._text[self._at - 1]

    def run(self, characters: re.Pattern[str]) -> str:
        """What has arrived of the characters that match, perhaps nothing and perhaps not all of them."""
        found = characters.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def scan(self, scanner: JsonScanner) -> str:
        """What has arrived of the value that the scanner follows."""
        start, self._at = self._at, scanner.scan(self._text, self._at)
        return self._text[start : self._at]

    def scan_one(self, scanner: JsonScanner) -> str:
        """The next character, which belongs to the value that the scanner follows."""
        self._at = scanner.scan(self._text[: self._at + 1], self._at)
        return self._text[self._at - 1]

    def all_of(self, characters: re.Pattern[str]) -> Reading[str]:
        """All that match from here on."""
        pieces: list[str] = []
        while True:
            yield from self.peek()
            piece = self.run(characters)
            if not piece:
                return "".join(pieces)
            pieces.append(piece)

    def any_of(self, literals: Collection[str]) -> Reading[tuple[str, bool]]:
        """Reads one of the literals, none of which begins another: it, and True.

        Else what was read before it became clear that none is here, and False.
        """
        read = ""
        while read not in literals or not read:
            char = yield from self.peek()
            if not char or not any(literal.startswith(read + char) for literal in literals):
                return read, False
            read += self.take()
        return read, True
