"""How far chances can be trusted, and how well they tell good answers from bad ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BINS = 5


@dataclass(frozen=True)
class Bin:
    """Answers with about the same chance: its mean, the share that was good, and how many they are."""

    told: float
    came: float
    answers: int


@dataclass(frozen=True)
class Calibration:
    """`auc`: the chance that a good answer was given a higher chance than a bad one; 0.5: nothing is told.

    `skill`: how much smaller the mean squared error is than that of always saying the mean, at most 1.
    `error`: the mean distance of what was told from what came, over bins of equally many answers.
    """

    auc: float
    skill: float
    error: float
    bins: tuple[Bin, ...]


def calibration(chances: Floats, scores: Floats) -> Calibration:
    """Of chances told for answers, and what came, (N,) both."""
    parts = np.array_split(np.argsort(chances, kind="stable"), BINS)
    bins = tuple(
        Bin(round(float(chances[part].mean()), 4), round(float(scores[part].mean()), 4), len(part))
        for part in parts
        if len(part)
    )
    variance = float(((scores - scores.mean()) ** 2).mean())
    skill = 1 - float(((scores - chances) ** 2).mean()) / variance if variance else 0.0
    apart = sum(each.answers * abs(each.told - each.came) for each in bins) / len(scores)
    return Calibration(auc(chances, scores), skill, apart, bins)


def auc(chances: Floats, scores: Floats) -> float:
    """Ties count half; NaN where all answers are good, or none."""
    good, bad = chances[scores > 0.5], chances[scores <= 0.5]
    if not len(good) or not len(bad):
        return float("nan")
    return float(((good[:, None] > bad) + 0.5 * (good[:, None] == bad)).mean())
