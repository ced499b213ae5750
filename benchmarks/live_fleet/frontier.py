"""Cost against quality: of each model alone, of mixing them at random, of the oracle, of a policy's settings.

A frontier is a line through points of rising quality and cost: what lies between two settings is had by
drawing one of both for each request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Frontier:
    """`qualities`, rising, and what each costs, both (K,); means over questions."""

    qualities: Floats
    costs: Floats

    def cost(self, quality: float) -> float:
        """The least with which this quality is reached; NaN where it never is."""
        if quality > self.qualities[-1] + 1e-9:
            return float("nan")
        return float(np.interp(quality, self.qualities, self.costs))


def mixtures(scores: Floats, costs: Floats) -> Frontier:
    """Models drawn at random with fixed shares, at their best: the lower hull. Both (N, M)."""
    return _hull(scores.mean(axis=0), costs.mean(axis=0))


def oracle(scores: Floats, costs: Floats) -> Frontier:
    """The least cost of each quality for one who knows every score beforehand; both (N, M).

    From the cheapest model on, answers that raise the quality are bought, the best value first.
    """
    cheapest = costs.min(axis=1)
    first = scores[np.arange(len(scores)), costs.argmin(axis=1)]
    right = np.where(scores > 0.5, costs, np.inf).min(axis=1)
    buyable = (first < 0.5) & np.isfinite(right)
    more = np.sort((right - cheapest)[buyable])
    count = len(scores)
    qualities = (first.sum() + np.arange(len(more) + 1)) / count
    return Frontier(qualities, (cheapest.sum() + np.concatenate(([0.0], np.cumsum(more)))) / count)


def settings(scores: Floats, costs: Floats) -> Frontier:
    """Of a policy that was run with K settings, from the cheapest on; both (K, N).

    A setting that costs more and is no better than one before is left out.
    """
    points = sorted(zip(costs.mean(axis=1).tolist(), scores.mean(axis=1).tolist(), strict=True))
    kept: list[tuple[float, float]] = []
    for cost, quality in points:
        if not kept or quality > kept[-1][0]:
            kept.append((quality, cost))
    qualities, least = np.array(kept).T
    return Frontier(qualities, least)


def recovered(mixing: float, known: float, policy: float) -> float:
    """How far a policy's cost is from random mixing's to the oracle's; NaN where these are the same."""
    return (mixing - policy) / (mixing - known) if mixing != known else float("nan")


def _hull(qualities: Floats, costs: Floats) -> Frontier:
    """From the cheapest point to the best one, along the points below which no mixture lies."""
    points = sorted(zip(costs.tolist(), (-qualities).tolist(), strict=True))
    best = max(qualities.tolist())
    kept: list[tuple[float, float]] = []
    for cost, negative in points:
        point = (-negative, cost)
        if kept and point[0] <= kept[-1][0]:
            continue
        while len(kept) > 1 and _slope(kept[-2], kept[-1]) >= _slope(kept[-2], point):
            kept.pop()
        kept.append(point)
        if point[0] == best:
            break
    return Frontier(*(np.array(values) for values in zip(*kept, strict=True)))


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Of cost over quality."""
    return (other[1] - one[1]) / (other[0] - one[0])
