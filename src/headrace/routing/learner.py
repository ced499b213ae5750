"""What learns as it goes, and can hand on what it has learnt."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

Saved = TypeVar("Saved")


class Learner(Protocol):
    """One part of what is known of a model: its answers' lengths, its speed, its price."""

    def save(self) -> object:
        """All that it has learnt, as what JSON can hold. It does not change while nothing is observed."""
        ...

    def load(self, saved: object, now: float) -> bool:
        """Takes up what `save` gave, as if the last of it were seen now, by the clock that it learns by.

        False for anything else, of which nothing is taken.
        """
        ...


def recognised(saved: object, kind: type[Saved]) -> Saved | None:
    """What a learner's `save` gave, of this kind, as it is read back; None for anything else."""
    try:
        return msgspec.convert(saved, kind)
    except msgspec.ValidationError:
        return None
