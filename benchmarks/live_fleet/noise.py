"""How much of a score is chance: the same question asked several times at temperature 0.7.

No router can know whether an answer will be right where the same model gives right and wrong ones to the
same question; at most it knows how often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from live_fleet.calibration import auc

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """`quality`: of the sampled answers. `chance`: the share of the scores' variance that lies within
    questions, which no estimate can explain. `best_auc`: that of one who knew every question's true chance,
    were these spread over questions as a beta distribution."""

    questions: int
    samples: int
    quality: float
    chance: float
    best_auc: float


def noise(scores: Floats) -> Noise:
    """Of S scores of each question, (N, S), S at least 2."""
    count, samples = scores.shape
    often = scores.mean(axis=1)
    mean = float(often.mean())
    within = float((often * (1 - often)).mean()) * samples / (samples - 1)
    total = mean * (1 - mean)
    share = within / total if total else 0.0
    return Noise(count, samples, mean, share, _best_auc(mean, share))


def _best_auc(mean: float, share: float) -> float:
    """Of chances from the beta distribution of this mean whose draws vary within questions by this share."""
    if not 0 < mean < 1 or share >= 1:
        return 0.5
    sharpness = share / (1 - share)  # alpha + beta, since 1 - share = 1 / (1 + alpha + beta)
    draw = np.random.default_rng(0)
    chances = draw.beta(max(mean * sharpness, 1e-3), max((1 - mean) * sharpness, 1e-3), 4000)
    return auc(chances, (draw.random(4000) < chances).astype(np.float64))
