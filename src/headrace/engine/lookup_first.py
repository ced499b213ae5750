"""Drafts from the sequence itself where it plainly repeats, at no cost; else from another drafter."""

from __future__ import annotations

from collections.abc import Sequence as Items

from headrace.engine.prompt_lookup import PromptLookup
from headrace.engine.sequence import Sequence
from headrace.engine.speculation import Ask, Draft, Drafter

_PLAIN = 4
"""Tokens that must have matched."""


class LookupFirst:
    """Implements `headrace.engine.speculation.Drafter`. Grades of the lookup's are negative: its own."""

    def __init__(self, other: Drafter):
        self._lookup = PromptLookup()
        self._other = other

    @property
    def steps(self) -> int:
        return self._other.steps

    def propose(self, asks: Items[Ask], least_chance: float) -> list[Draft]:
        drafts = self._lookup.propose(asks, least_chance)
        plain = [bool(draft.grades) and draft.grades[0] >= _PLAIN for draft in drafts]
        rest = [ask for ask, known in zip(asks, plain, strict=True) if not known]
        others = iter(self._other.propose(rest, least_chance))
        return [
            Draft(draft.tokens, tuple(-grade for grade in draft.grades)) if known else next(others)
            for draft, known in zip(drafts, plain, strict=True)
        ]

    def forget(self, seq: Sequence) -> None:
        self._lookup.forget(seq)
        self._other.forget(seq)

    def close(self) -> None:
        self._lookup.close()
        self._other.close()
