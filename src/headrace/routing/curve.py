"""Quality against the share of strong calls: how much of the gap between two models a router recovers.

The measures of RouteLLM (Ong et al., 2024, arXiv:2406.18665): the performance gap recovered, PGR, is 0 where
the weak model answers everything and 1 where the strong one does. APGR is the area under it over all shares
of strong calls; CPT(x) the least share of strong calls with which the recovered gap reaches x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Recovery:
    """What a router recovers: the mean over shares, and the shares of strong calls for 50% and 80%."""

    apgr: float
    cpt_50: float
    cpt_80: float


def recovered_gap(preference: Floats, weak: Floats, strong: Floats) -> Floats:
    """PGR with the 0, 1, … n prompts of greatest preference given to the strong model, shape (n + 1,).

    Prompts of equal preference count as if in random order. All arguments have shape (n,); the strong model's
    mean score must be above the weak one's.
    """
    order = np.argsort(-preference, kind="stable")
    ranked = preference[order]
    _, group, sizes = np.unique(-ranked, return_inverse=True, return_counts=True)
    means = np.bincount(group, (strong - weak)[order]) / sizes
    gained = np.concatenate(([0.0], np.cumsum(means[group])))
    assert gained[-1] > 0, "the strong model must be the better one"
    return np.asarray(gained / gained[-1])


def recovery(preference: Floats, weak: Floats, strong: Floats) -> Recovery:
    """APGR, CPT(50%) and CPT(80%) of calling the strong model for the prompts of greatest `preference`."""
    gap = recovered_gap(preference, weak, strong)
    count = len(weak)
    area = float((gap[:-1] + gap[1:]).sum() / 2 / count)
    return Recovery(area, _share(gap, 0.5), _share(gap, 0.8))


def _share(gap: Floats, wanted: float) -> float:
    return int(np.argmax(gap >= wanted)) / (len(gap) - 1)
