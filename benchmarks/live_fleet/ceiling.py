"""What a router would recover that knew how often each model answers each question well, and nothing else.

Its chances are means of sampled answers; what it is measured on are the greedy ones. With few samples its
chances are themselves uncertain, so that one who knew them exactly would recover somewhat more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from live_fleet.equal_quality import AtQuality, compared
from live_fleet.policies import WORTHS

Floats = NDArray[np.float64]


def ceiling(scores: Floats, costs: Floats, often: Floats) -> list[AtQuality]:
    """`scores`, `costs`: of greedy answers; `often`: how often sampled ones were good; (N, M) all."""
    usual = costs.mean(axis=0) / costs.mean(axis=0)[-1]
    each, best = np.arange(len(scores)), int(scores.mean(axis=0).argmax())
    chosen = [(worth * often - usual).argmax(axis=1) for worth in WORTHS.tolist()]
    chosen.append(np.full(len(scores), best))
    return compared(
        scores,
        costs,
        (np.array([scores[each, c] for c in chosen]), np.array([costs[each, c] for c in chosen])),
    )


def shrunk(good: Sequence[Sequence[float]], mean: float) -> list[float]:
    """How often each question's sampled answers were good, drawn to the mean as by one more sample."""
    return [(sum(each) + mean) / (len(each) + 1) for each in good]
