"""Promises about quality that hold with high probability: Learn then Test on held-out records.

A router may leave a prompt to a cheaper model where the best one is at most `slack` more likely to answer
it well. The greatest slack is looked for that keeps the promise: slacks are tested one after another from
the strictest on, each against the hypothesis that it breaks the promise, up to the first that cannot be
shown to keep it (fixed-sequence testing; Angelopoulos et al., 2021, arXiv:2110.01052). Then the chance of
having chosen a slack that breaks it in the long run is at most delta, whatever the estimator is worth.

The test bets (Waudby-Smith & Ramdas, 2024, arXiv:2010.09686): what is tested is the mean over prompts of
the router's score less quality times the best model's score. The two are paired, so that where the router
asks the best model little is at stake. It holds for any number of records and any scores in [0, 1]. Each
stake is reckoned anew from the capital still wanting and the records still to come (Voracek & Orabona, 2025,
arXiv:2505.22422), here as one hedges an option that pays 1 / delta: with many records the test is then
nearly as sharp as the normal approximation.

What comes out over the next few requests varies by itself, even at a slack that is right in the long run.
So a second test asks that the quality of the next `horizon` requests be kept, too, by the normal
approximation. It also counts the records that were learnt from, each with what is said of it by an estimator
that was learnt without it (`HeldOut`): more records, a steadier slack.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.routing.estimator import HeldOut

Floats = NDArray[np.float64]
Choices = NDArray[np.intp]

ALWAYS_BEST = -1.0
"""The slack with which the best model answers everything: none can be more likely to be right by so much."""

STEPS = 200
"""So many slacks are tried at most."""

_BOLDEST = 0.8
"""Of what can be lost at once, the most that is staked."""

_GUESSES, _GUESS = 5, 0.1
"""The variance of the first bets is guessed: as though so many records had shown such a one."""

_NORMAL = NormalDist()
_CHANCES = np.linspace(-12, -1e-3, 600)
_DEPTHS = np.array([_NORMAL.inv_cdf(chance) for chance in np.exp(_CHANCES)])
_HEDGES = np.array([_NORMAL.pdf(depth) for depth in _DEPTHS]) / np.exp(_CHANCES)
"""By the logarithm of the chance that an option will pay: how many standard deviations of what is to come it
is ahead, and its hedge as a multiple of its price, per such standard deviation."""


Chance = TypeVar("Chance", float, Floats)


def least(best: Chance, quality: float, slack: float | None) -> Chance:
    """The chance from which on a model will do beside the best one's; without a slack quality says it."""
    return quality * best if slack is None else best - slack


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
    return np.unique(np.quantile(differences, np.linspace(0, 1, STEPS)).astype(np.float64))


def greatest_slack(
    good: Floats,
    scores: Floats,
    best: int,
    quality: float,
    delta: float,
    horizon: int,
    learnt: HeldOut | None = None,
) -> float:
    """The greatest slack shown to keep `quality`; ALWAYS_BEST where none is.

    `good`, `scores`: (N, M), what an estimator that has not seen these records says of them, and what came
    of it. `learnt`: the same of the records it was learnt from, by leaving each out.
    """
    tried = slacks(good, best)
    excess = _excess(HeldOut(good, scores), best, quality, tried)
    others = excess[:0] if learnt is None else _excess(learnt, best, quality, tried)
    # Records may lie sorted; bets are placed in turn.
    order = np.random.default_rng(0).permutation(len(scores))
    kept = bets_won(excess[order], quality, delta) & ~_may_fall_short(excess, others, delta, horizon)
    count = len(tried) if kept.all() else int(kept.argmin())
    return float(tried[count - 1]) if count else ALWAYS_BEST


def bets_won(excess: Floats, worst: float, delta: float) -> NDArray[np.bool_]:
    """Of each column of (N, K) values, at least -`worst`: whether their mean is shown to be above 0.

    The capital of one who bets on a positive mean, starting from 1, ever exceeds 1 / delta with probability
    at most delta, were the mean 0 or less (Ville). A stake is what the values before it say it should be.
    """
    count, columns = excess.shape
    goal = np.full(columns, np.log(delta))  # the logarithm of capital times delta
    sums, squares, cubes = np.zeros(columns), np.full(columns, _GUESSES * _GUESS), np.zeros(columns)
    for number, values in enumerate(excess):
        seen, to_go = number + _GUESSES, count - number
        mean = sums / seen
        variance = squares / seen - mean**2
        skew = (cubes / seen - 3 * mean * squares / seen + 2 * mean**3) / variance**1.5
        # The hedge of least variance, to second order, which is good for a small skew alone.
        bend = 1 - np.interp(goal, _CHANCES, _DEPTHS) * skew.clip(-1, 1) / (2 * np.sqrt(to_go))
        stake = np.interp(goal, _CHANCES, _HEDGES) * bend.clip(min=0) / np.sqrt(variance * to_go)
        goal += np.log1p(np.where(goal < 0, np.minimum(stake, _BOLDEST / worst), 0.0) * values)
        sums += values
        squares += values**2
        cubes += values**3
    return goal >= 0


def _excess(held_out: HeldOut, best: int, quality: float, tried: Floats) -> Floats:
    """The score at each slack less `quality` times the best model's, (N, K)."""
    good, scores = np.asarray(held_out.good, np.float64), np.asarray(held_out.scores, np.float64)
    rows = np.arange(len(scores))
    got = [scores[rows, chosen(good, best, slack)] for slack in tried.tolist()]
    return np.stack(got, axis=1) - quality * scores[:, [best]]


def _may_fall_short(excess: Floats, learnt: Floats, delta: float, horizon: int) -> NDArray[np.bool_]:
    """Whether the mean of the next `horizon` values is below 0 with a probability above `delta`.

    What the records and the next requests differ by is drawn anew for each promise, and adds up as chance
    does. What the records learnt from are off by is the same behind all promises of a router, so it is added
    in full. Shapes (N, K) and (L, K) give (K,).
    """
    both = np.concatenate([excess, learnt])
    share = len(excess) / len(both)
    drawn = np.sqrt(share**2 / len(excess) + 1 / horizon)
    fixed = (1 - share) / np.sqrt(max(1, len(learnt)))
    margin = _NORMAL.inv_cdf(1 - delta) * both.std(axis=0) * (drawn + fixed)
    return np.asarray(both.mean(axis=0) < margin)
