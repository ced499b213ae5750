"""How often drafted tokens are right, learned by their grade: of a sequence, and of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Items

from headrace.engine.sequence import Sequence

_MEMORY = 0.95
"""What older tokens weigh against the next one."""
_PRIOR = 4.0
"""Tokens of its own by which a sequence counts as much as all others do."""


class _Rate:
    """Right among tried, older ones fading."""

    __slots__ = ("right", "tried")

    def __init__(self, right: float = 0.0, tried: float = 0.0) -> None:
        self.right = right
        self.tried = tried

    def add(self, right: bool, memory: float) -> None:
        self.right = memory * self.right + right
        self.tried = memory * self.tried + 1


class Acceptance:
    """The chance that a token of a grade is right, where all before it were."""

    def __init__(self) -> None:
        self._all: dict[int, _Rate] = defaultdict(lambda: _Rate(3.6, 4.0))  # so that each grade is tried
        self._own: dict[Sequence, dict[int, _Rate]] = {}

    def rate(self, seq: Sequence, grade: int) -> float:
        """The sequence's own rate, leaning on that of all sequences as long as little is known of it."""
        every = self._all[grade]
        common = every.right / every.tried
        own = self._own.get(seq, {}).get(grade)
        return common if own is None else (own.right + _PRIOR * common) / (own.tried + _PRIOR)

    def learn(self, seq: Sequence, grades: Items[int], accepted: int) -> None:
        """Of tokens of these grades the first `accepted` were right; the one after them, if any, was not."""
        own = self._own.setdefault(seq, defaultdict(_Rate))
        for index, grade in enumerate(grades[: accepted + 1]):
            own[grade].add(index < accepted, _MEMORY)
            self._all[grade].add(index < accepted, 0.995)

    def forget(self, seq: Sequence) -> None:
        """The sequence has ended."""
        self._own.pop(seq, None)
