"""Promises about quality that hold with high probability: Learn then Test on held-out records.

A router may leave a prompt to a cheaper model where the best one is at most `slack` more likely to answer
it well. The greatest slack is looked for that keeps the promise: slacks are tested one after another from
the strictest on, each against the hypothesis that it breaks the promise, up to the first that cannot be
shown to keep it (fixed-sequence testing; Angelopoulos et al., 2021, arXiv:2110.01052). Then the chance of
having chosen a slack that breaks it in the long run is at most delta, whatever the estimator is worth.

The test bets (Waudby-Smith & Ramdas, 2024, arXiv:2010.09686): what is tested is the mean over prompts of
the router's score less quality times the best model's score. The two are paired, so that where the router
asks the best model little is at stake, and the bets, whose size follows the variance seen so far, grow
large. It holds for any number of records and any scores in [0, 1].

What comes out over the next few requests varies by itself, even at a slack that is right in the long run.
So a second test asks that the quality of the next `horizon` requests be kept, too, by the normal
approximation.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Choices = NDArray[np.intp]

ALWAYS_BEST = -1.0
"""The slack with which the best model answers everything: none can be more likely to be right by so much."""

STEPS = 200
"""So many slacks are tried at most."""

_BOLDEST = 0.8
"""Of what can be lost at once, the most that is staked."""


@dataclass(frozen=True)
class Promise:
    """With probability 1 - delta over the records: at least `quality` times `best`'s expected score is kept.

    So it is over the next `horizon` requests, too. `share` of the `records` it was set with went to `best`.
    """

    quality: float
    delta: float
    horizon: int
    best: str
    slack: float
    share: float
    records: int


def chosen(good: Floats, best: int, slack: float) -> Choices:
    """For each prompt the first model that will do: (N, M) gives (N,). Models stand in their costs' order."""
    will_do = good >= good[:, [best]] - slack
    will_do[:, best] = True
    return np.asarray(will_do.argmax(axis=1))


def slacks(good: Floats, best: int) -> Floats:
    """Slacks to try, the strictest first: quantiles of how much better the best model seems."""
    differences = good[:, [best]] - np.delete(good, best, axis=1)
    return np.unique(np.quantile(differences, np.linspace(0, 1, STEPS)))


def greatest_slack(
    good: Floats, scores: Floats, best: int, quality: float, delta: float, horizon: int
) -> float:
    """The greatest slack shown to keep `quality`; ALWAYS_BEST where none is.

    `good`, `scores`: (N, M), what an estimator that has not seen these records says of them, and what came
    of it.
    """
    rows = np.arange(len(scores))
    order = np.random.default_rng(0).permutation(
        len(scores)
    )  # records may lie sorted; bets are placed in turn
    kept = ALWAYS_BEST
    for slack in slacks(good, best):
        got = scores[rows, chosen(good, best, float(slack))]
        excess = (got - quality * scores[:, best])[order]
        if p_value(excess, quality, delta) > delta or _may_fall_short(excess, delta, horizon):
            break
        kept = float(slack)
    return kept


def p_value(excess: Floats, worst: float, delta: float) -> float:
    """Of the hypothesis that the mean of `excess` is at most 0; each of its values is at least -`worst`.

    The capital of one who bets on a positive mean, starting from 1, ever exceeds c with probability at most
    1 / c, were the hypothesis true (Ville). Bets are sized for a decision at level `delta`.
    """
    count = len(excess)
    seen = np.arange(1, count + 1)
    mean = np.cumsum(excess) / (seen + 1)
    variance = (0.05 + np.cumsum((excess - mean) ** 2)) / (seen + 1)
    before = np.concatenate(([0.05], variance[:-1]))
    stake = np.minimum(np.sqrt(2 * np.log(1 / delta) / (count * before)), _BOLDEST / worst)
    capital = np.cumsum(np.log1p(stake * excess))
    return float(np.exp(-max(0.0, float(capital.max(initial=0.0)))))


def _may_fall_short(excess: Floats, delta: float, horizon: int) -> bool:
    """Whether the mean of the next `horizon` values is below 0 with a probability above `delta`."""
    deviation = float(excess.std()) * np.sqrt(1 / len(excess) + 1 / horizon)
    return bool(excess.mean() < NormalDist().inv_cdf(1 - delta) * deviation)
