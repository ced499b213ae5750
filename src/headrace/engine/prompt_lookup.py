"""Drafts from the sequence itself: what followed the last time that it went as it goes now.

Code and answers about a text repeat what stands there already (Saxena, "Prompt lookup decoding", 2023).
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from headrace.engine.sequence import Sequence
from headrace.engine.speculation import Ask, Draft

_SHORTEST, _LONGEST = 1, 16
"""Tokens that must be equal, and beyond which more of them make no difference."""
_CANDIDATES = 16
"""The most recent occurrences that are compared."""


class PromptLookup:
    """Implements `headrace.engine.speculation.Drafter`. A token's grade is how many before it matched."""

    steps = 0

    def __init__(self) -> None:
        self._indexes: dict[Sequence, _Index] = {}

    def propose(self, asks: Items[Ask], least_chance: float) -> list[Draft]:
        return [self._index(seq).draft(seq.tokens, limit) for seq, limit in asks]

    def forget(self, seq: Sequence) -> None:
        self._indexes.pop(seq, None)

    def close(self) -> None:
        self._indexes.clear()

    def _index(self, seq: Sequence) -> _Index:
        index = self._indexes.get(seq)
        if index is None:
            index = self._indexes[seq] = _Index()
        return index


class _Index:
    """Where in a sequence each run of _SHORTEST tokens occurs. A token is entered once."""

    __slots__ = ("_entered", "_places")

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], list[int]] = {}
        """By its tokens, the positions after each occurrence, ascending."""
        self._entered = _SHORTEST

    def draft(self, tokens: list[int], limit: int) -> Draft:
        """What followed the longest match of the last tokens; among equals the most recent."""
        for place in range(self._entered, len(tokens)):
            self._places.setdefault(tuple(tokens[place - _SHORTEST : place]), []).append(place)
        self._entered = max(self._entered, len(tokens))
        best, longest = 0, 0
        for place in reversed(self._places.get(tuple(tokens[-_SHORTEST:]), ())[-_CANDIDATES:]):
            length = _match_length(tokens, place)
            if length > longest:
                best, longest = place, length
        if not longest:
            return Draft()
        # A match that reaches into its own continuation is a period, which goes on.
        period = tokens[best : best + limit]
        drafted = tuple((period * limit)[:limit])
        return Draft(drafted, tuple(min(longest + i, _LONGEST) for i in range(limit)))


def _match_length(tokens: list[int], place: int) -> int:
    """How many tokens before `place` equal the last ones."""
    length = _SHORTEST
    limit = min(place, _LONGEST)
    while length < limit and tokens[place - 1 - length] == tokens[-1 - length]:
        length += 1
    return length
