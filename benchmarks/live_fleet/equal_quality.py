"""What a policy costs where it is as good as random mixing and as the oracle, with bounds of confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from live_fleet.frontier import Frontier, mixtures, oracle, recovered, settings
from live_fleet.policies import Played

Floats = NDArray[np.float64]

SHARES = (0.8, 0.9, 0.95, 1.0)
"""Of the best model's quality."""

_DRAWS = 400
_STEPS = 50


@dataclass(frozen=True)
class AtQuality:
    """At `share` of the best model's quality; costs are shares of what the best model costs.

    `share` None: at all qualities from the cheapest model's to the best one's; costs are means over them.
    `recovered`: of the distance in cost from random mixing to the oracle; `low`, `high`: 95%, by bootstrap
    over questions.
    """

    share: float | None
    mixing: float
    oracle: float
    policy: float
    recovered: float
    low: float
    high: float


@dataclass(frozen=True)
class SetBeforehand:
    """With the setting that reached `share` of the best model's quality on the questions learnt from.

    `quality`: what came, as a share of the best model's. `recovered`: at that quality.
    """

    share: float
    quality: float
    mixing: float
    oracle: float
    policy: float
    recovered: float


def compared(scores: Floats, costs: Floats, played: Played) -> list[AtQuality]:
    """Scores and costs of the models, (N, M), and of a policy's settings, (K, N)."""
    draw = np.random.default_rng(0)
    whole = _recovered(scores, costs, played)
    drawn = []
    for _ in range(_DRAWS):
        rows = draw.integers(len(scores), size=len(scores))
        drawn.append(_recovered(scores[rows], costs[rows], (played[0][:, rows], played[1][:, rows])))
    low, high = np.nanquantile(np.array(drawn)[:, :, 3], [0.025, 0.975], axis=0)
    return [
        AtQuality(share, *figures, float(low[n]), float(high[n]))
        for n, (share, figures) in enumerate(zip((*SHARES, None), whole, strict=True))
    ]


def chosen_setting(scores: Floats, played: Played, share: float) -> int:
    """The cheapest setting of (K, N) that reaches a share of the best model's quality; scores (N, M)."""
    enough = played[0].mean(axis=1) >= share * scores.mean(axis=0).max()
    return int(np.where(enough, played[1].mean(axis=1), np.inf).argmin())


def set_beforehand(share: float, scores: Floats, costs: Floats, came: Played) -> SetBeforehand:
    """Of what came of one setting, (N,) each."""
    best = int(scores.mean(axis=0).argmax())
    quality, dearest = float(came[0].mean()), float(costs[:, best].mean())
    mixing, least = (
        line.cost(quality) / dearest for line in (mixtures(scores, costs), oracle(scores, costs))
    )
    cost = float(came[1].mean()) / dearest
    won = recovered(mixing, least, cost)
    return SetBeforehand(share, quality / float(scores[:, best].mean()), mixing, least, cost, won)


def _recovered(scores: Floats, costs: Floats, played: Played) -> list[tuple[float, float, float, float]]:
    """Costs of mixing, of the oracle and of the policy, and how much that recovers, at all shares; and the
    same over all qualities."""
    best = int(scores.mean(axis=0).argmax())
    dearest, quality = float(costs[:, best].mean()), float(scores[:, best].mean())
    lines: Sequence[Frontier] = (mixtures(scores, costs), oracle(scores, costs), settings(*played))
    found = []
    for share in SHARES:
        mixing, least, policy = (line.cost(share * quality) / dearest for line in lines)
        found.append((mixing, least, policy, recovered(mixing, least, policy)))
    qualities = np.linspace(lines[0].qualities[0], quality, _STEPS).tolist()
    mixing, least, policy = (float(np.mean([line.cost(q) for q in qualities])) / dearest for line in lines)
    return [*found, (mixing, least, policy, recovered(mixing, least, policy))]
