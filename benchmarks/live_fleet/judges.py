"""What a cascade would recover whose judge never errs: of the first answer alone, or of the next one, too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from live_fleet.equal_quality import SHARES
from live_fleet.frontier import Frontier, mixtures, oracle, recovered

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """At `share` of the best model's quality: how much of the way from random mixing to the oracle a cascade
    recovers whose judge sees whether the first answer is good (`own`), and one whose judge also sees whether
    the next one would be (`both`)."""

    share: float
    own: float
    both: float


def judged(scores: Floats, costs: Floats, first: int, following: int) -> list[Judged]:
    """Of a cascade from one model to another; scores and costs of all models, (N, M)."""
    wrong = scores[:, first] < 0.5
    own = _line(scores, costs, first, following, wrong)
    both = _line(scores, costs, first, following, wrong & (scores[:, following] > 0.5))
    best = float(scores.mean(axis=0).max())
    mixed, known = mixtures(scores, costs), oracle(scores, costs)

    def won(line: Frontier, share: float) -> float:
        asked = share * best
        quality = max(asked, float(line.qualities[0]))  # where the first model alone is better
        return recovered(mixed.cost(asked), known.cost(asked), line.cost(quality))

    return [Judged(share, won(own, share), won(both, share)) for share in SHARES]


def _line(scores: Floats, costs: Floats, first: int, following: int, goes_on: NDArray[np.bool_]) -> Frontier:
    """From the first model alone to a cascade that goes on wherever it should."""
    quality, cost = float(scores[:, first].mean()), float(costs[:, first].mean())
    gained = float((goes_on * scores[:, following]).mean())
    added = float((goes_on * costs[:, following]).mean())
    return Frontier(np.array([quality, quality + gained]), np.array([cost, cost + added]))
