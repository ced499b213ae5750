"""Whose turn it is: weighted fair queueing between callers, by priority and arrival within one.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) over tokens, corrected when a request's real
cost is known, as the virtual token counter of Sheng et al. (OSDI 2024) is. A caller's tag is how much service
it has had, divided by its weight; the lowest tag is next. Service that nobody else wanted is not held
against a caller: one that begins to wait starts at the tag that is being served.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What waits."""

    @property
    def caller(self) -> str:
        """Whose it is."""
        ...

    @property
    def weight(self) -> float:
        """The caller's share against the others'."""
        ...

    @property
    def cost(self) -> float:
        """What serving it is expected to take, in tokens."""
        ...

    @property
    def priority(self) -> int:
        """Lower is served first, among one caller's."""
        ...


Item = TypeVar("Item", bound=Waiting)


@dataclass(slots=True)
class _Line(Generic[Item]):
    """What waits of one caller, next one first, and the caller's tag."""

    tag: float = 0.0
    items: list[tuple[int, int, Item]] = field(default_factory=list)
    """(priority, arrival, item); arrivals are distinct, so items are never compared."""


class FairQueue(Generic[Item]):
    """Items of many callers, handed out at their fair share."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[Item]] = {}
        self._now = 0.0
        """Virtual time: the tag that is being served."""
        self._arrivals = 0

    def add(self, item: Item) -> None:
        """The item waits."""
        line = self._lines.setdefault(item.caller, _Line())
        if not line.items:
            line.tag = max(line.tag, self._now)
        self._arrivals += 1
        insort(line.items, (item.priority, self._arrivals, item))

    def pop(self) -> Item | None:
        """The item whose turn it is, its expected cost now on its caller's account; None where none waits."""
        waiting = [line for line in self._lines.values() if line.items]
        if not waiting:
            return None
        line = min(waiting, key=lambda line: line.tag)
        item = line.items.pop(0)[2]
        self._now = max(self._now, line.tag)
        line.tag += item.cost / item.weight
        return item

    def settle(self, item: Item, cost: float) -> None:
        """The item was served, and it took `cost` rather than what was expected."""
        line = self._lines.setdefault(item.caller, _Line(self._now))
        line.tag += (cost - item.cost) / item.weight
        if not line.items and line.tag <= self._now:
            del self._lines[item.caller]  # it would begin at the present time anyway

    def remove(self, item: Item) -> bool:
        """The item waits no longer; False where it did not wait."""
        line = self._lines.get(item.caller)
        for index, (_, _, waiting) in enumerate(line.items if line else ()):
            if waiting is item:
                assert line is not None
                del line.items[index]
                return True
        return False

    def from_last(self, caller: str) -> Iterator[Item]:
        """A caller's items, that first which would be served last: the newest of its least urgent ones."""
        return (item for _, _, item in reversed(self._lines[caller].items))

    def callers(self) -> Iterator[str]:
        """Those who wait."""
        return (name for name, line in self._lines.items() if line.items)

    def __len__(self) -> int:
        return sum(len(line.items) for line in self._lines.values())
