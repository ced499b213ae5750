"""Quality against the share of strong calls: how much of the gap between two models a router recovers.

The measures of RouteLLM (Ong et al., 2024, arXiv:2406.18665): the performance gap recovered, PGR, is 0 where
the weak model answers everything and 1 where the strong one does. APGR is the area under it over all shares
of strong calls; CPT(x) the least share of strong calls with which the recovered gap reaches x.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Recovery:
    """What a router recovers: the mean over shares, and the shares of strong calls for 50% and 80%."""

    apgr: float
    cpt_50: float
    cpt_80: float


@dataclass(frozen=True)
class Ranking:
    """Prompts in the order in which the strong model gets them, `gains` what it wins for each, (N,)."""

    order: NDArray[np.intp]
    ties: NDArray[np.intp]
    gains: Floats

    @staticmethod
    def of(preference: Floats, weak: Floats, strong: Floats) -> Ranking:
        """By falling preference; prompts of equal preference count as if in random order. All shapes (N,)."""
        order = np.argsort(-preference, kind="stable")
        _, ties = np.unique(-preference[order], return_inverse=True)
        return Ranking(order, ties, (strong - weak)[order])

    def recovery(self, weights: Floats | None = None) -> Recovery:
        """APGR, CPT(50%) and CPT(80%); each prompt counts `weights` times, (N,), or once.

        All are NaN where there is no gap, as the strong model is not the better one.
        """
        often = np.ones(len(self.order)) if weights is None else weights[self.order]
        amounts = np.bincount(self.ties, often)
        means = np.bincount(self.ties, often * self.gains) / np.maximum(amounts, 1e-300)
        gained = np.concatenate(([0.0], np.cumsum(often * means[self.ties])))
        if gained[-1] <= 0:
            return Recovery(np.nan, np.nan, np.nan)
        share = np.concatenate(([0.0], np.cumsum(often))) / often.sum()
        gap = gained / gained[-1]
        area = float(((gap[:-1] + gap[1:]) / 2 * np.diff(share)).sum())
        return Recovery(area, float(share[np.argmax(gap >= 0.5)]), float(share[np.argmax(gap >= 0.8)]))


def interval(
    rankings: list[tuple[Ranking, NDArray[np.intp]]], questions: int, draws: int = 400
) -> tuple[Recovery, Recovery]:
    """Bounds of the means over seeds, 95% bootstrap: seeds and questions are drawn with replacement.

    Each ranking comes with the question that each of its prompts is, (N,), so that a question drawn twice is
    so for every seed. Draws of so few questions that there is no gap are left out.
    """
    draw = np.random.default_rng(0)
    means = []
    for _ in range(draws):
        often = draw.multinomial(questions, np.full(questions, 1 / questions)).astype(np.float64)
        seeds = draw.integers(len(rankings), size=len(rankings))
        parts = [rankings[seed] for seed in seeds]
        means.append(np.mean([astuple(ranking.recovery(often[of])) for ranking, of in parts], axis=0))
    low, high = np.nanquantile(means, [0.025, 0.975], axis=0).tolist()
    return Recovery(*low), Recovery(*high)
