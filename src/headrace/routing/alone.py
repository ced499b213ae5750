"""Where each model would stand, had it answered everything, in cost and quality; and where the route stands.

Quality is estimated from the chances of all prompts, corrected by how far scores lay from the chances of the
prompts that were scored. Ten scores count as much as the belief that the chances are right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.routing.store import Decision

NANO = 10**9
_BELIEF = 10


@dataclass(frozen=True)
class Point:
    """The mean cost of an answer, in currency, and the mean quality, in [0, 1]."""

    cost: float
    quality: float


@dataclass
class _Sum:
    answers: int = 0
    cost: float = 0.0
    chance: float = 0.0
    scored: int = 0
    off: float = 0.0

    def add(self, cost: float, chance: float, score: float | None) -> None:
        self.answers += 1
        self.cost += cost
        self.chance += chance
        if score is not None:
            self.scored += 1
            self.off += score - chance

    def point(self) -> Point:
        quality = self.chance / self.answers + self.off / (self.scored + _BELIEF)
        return Point(self.cost / self.answers / NANO, min(1.0, max(0.0, quality)))


class Tally:
    """Sums over routed answers. Costs are in billionths."""

    def __init__(self) -> None:
        self.answers = 0
        self.chosen: Counter[str] = Counter()
        self.paid: Counter[str] = Counter()
        self.compared = 0
        """Answers of which it is known what the best model would have cost."""
        self.compared_cost = 0
        self.best_cost = 0
        self._alone: defaultdict[str, _Sum] = defaultdict(_Sum)
        self._route = _Sum()

    def add(self, decision: Decision, scores: Mapping[str, float]) -> None:
        """One answer, and scores of models for its prompt."""
        self.answers += 1
        self.chosen[decision.model] += 1
        self.paid[decision.model] += decision.cost
        for name in decision.chances.keys() & decision.costs.keys():
            self._alone[name].add(decision.costs[name], decision.chances[name], scores.get(name))
        if decision.model in decision.chances:
            chance, score = decision.chances[decision.model], scores.get(decision.model)
            self._route.add(decision.cost, chance, score)
        if decision.best in decision.costs:
            self.compared += 1
            self.compared_cost += decision.cost
            self.best_cost += decision.costs[decision.best]

    def alone(self) -> dict[str, Point]:
        """Each model, had it answered everything it was a candidate for."""
        return {name: each.point() for name, each in self._alone.items()}

    def route(self) -> Point | None:
        """What was chosen; None without answers."""
        return self._route.point() if self._route.answers else None


def mixtures(points: Sequence[Point]) -> list[Point]:
    """The corners of the best that random choice between models can do, from the cheapest to the best one."""
    corners: list[Point] = []
    for point in sorted(points, key=lambda each: (each.cost, -each.quality)):
        if corners and point.quality <= corners[-1].quality:
            continue
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-2], point):
            corners.pop()
        corners.append(point)
    return corners


def cost_of_mixing(points: Sequence[Point], quality: float) -> float | None:
    """The least mean cost at which random choice has this quality; None where it cannot have it."""
    corners = mixtures(points)
    if not corners or quality > corners[-1].quality:
        return None
    if quality <= corners[0].quality:
        return corners[0].cost
    for low, high in pairwise(corners):
        if quality <= high.quality:
            return low.cost + (quality - low.quality) / _slope(low, high)
    raise AssertionError("the quality lies between two corners")


def _slope(one: Point, other: Point) -> float:
    """Quality for money; the other costs more."""
    return (other.quality - one.quality) / max(other.cost - one.cost, 1e-30)
