"""What each slack would have kept of the best model's quality, among the records learnt from.

Nothing is promised by it: it is the plain average over records, each predicted without itself. Where nobody
has calibrated, it says which slack to begin with, so that a share of the best model's quality is asked of the
average request, and not of every single one: there a model that is seldom as good would never do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.routing.estimator import HeldOut
from headrace.routing.risk import chosen, slacks

Floats = NDArray[np.float64]

FEWEST = 50
"""Records, below which the average says too little."""


@dataclass(frozen=True)
class Bargain:
    """`slacks`, the strictest first, and what each kept: both (K,)."""

    slacks: Floats
    kept: Floats

    @staticmethod
    def of(held_out: HeldOut, best: int) -> Bargain | None:
        """Models stand in the order of their costs. None where the records are too few, or none is good."""
        good, scores = (np.asarray(each, np.float64) for each in (held_out.good, held_out.scores))
        wanted = float(scores[:, best].mean()) if len(scores) >= FEWEST else 0.0
        if wanted <= 0:
            return None
        tried, rows = slacks(good, best), np.arange(len(scores))
        got = [float(scores[rows, chosen(good, best, float(slack))].mean()) for slack in tried]
        return Bargain(tried, np.array(got) / wanted)

    def slack(self, quality: float) -> float:
        """The greatest up to which every slack kept the quality; the strictest where not even that did."""
        short = np.flatnonzero(self.kept < quality)
        return float(self.slacks[max(0, int(short[0]) - 1) if len(short) else -1])
