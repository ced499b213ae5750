"""Whether promises are kept: drawn again and again, how often quality falls short, and what it costs.

Each draw sets a promise on some held-out records and looks at others. The yardstick of cost is the one
fixed slack that, had it been known before, would itself have kept the promise in all but a share delta of
draws, at the fewest calls of the best model. It is looked for in many draws of its own: which one it is, a
few hundred tell only roughly, and the one that seems best in those is in part the luckiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.routing.evaluate import Trial
from headrace.routing.risk import ALWAYS_BEST, chosen, greatest_slack, slacks

Floats = NDArray[np.float64]

Table = tuple[NDArray[np.float32], NDArray[np.bool_]]

YARDSTICK_DRAWS = 5000
"""To find the best fixed slack."""

_AT_ONCE = 100
"""Of those draws; a matrix product looks at all their records."""


@dataclass(frozen=True)
class Kept:
    """Of one promise, over all draws.

    `fell_short`: the share of draws in which the realised quality of the records looked at was below
    `quality`; `fell_short_long_run`: in which that of all held-out records was. `share`: the mean share of
    calls of the best model; `share_fixed`: that of the yardstick.
    """

    quality: float
    fell_short: float
    fell_short_long_run: float
    share: float
    share_fixed: float
    draws: int

    @property
    def ratio(self) -> float:
        """Calls of the best model, as a multiple of the yardstick's."""
        return self.share / self.share_fixed


def keep(
    made: Sequence[Trial],
    quality: float,
    draws: int,
    delta: float = 0.05,
    records: int = 1000,
    seed: int = 0,
) -> Kept:
    """Sets the promise `draws` times on `records` records, each time looking at as many others.

    The draws take turns among the trials. Raises ConfigError where a trial has too few records.
    """
    if min(len(trial.test) for trial in made) < 2 * records:
        raise ConfigError(f"a draw needs {2 * records} records that were not learnt from")
    draw = np.random.default_rng(seed)
    grid = np.unique(np.concatenate([slacks(trial.good, _best(trial)) for trial in made[:5]]))
    grid = np.concatenate(([ALWAYS_BEST], grid))
    short, long_run, shares = [], [], []
    tables = [_table(trial, grid) for trial in made]
    for number in range(draws):
        trial, (got, _) = made[number % len(made)], tables[number % len(made)]
        best = _best(trial)
        order = draw.permutation(len(trial.test))
        held, looked = order[:records], order[records : 2 * records]
        scores, learnt = trial.test.scores, trial.router.estimator.held_out
        slack = greatest_slack(trial.good[held], scores[held], best, quality, delta, records, learnt)
        column = int(np.searchsorted(grid, slack, "right")) - 1
        wanted = trial.test.scores[:, best]
        realised, share = _realised(trial, looked, slack)
        short.append(realised < quality)
        shares.append(share)
        long_run.append(got[:, column].mean() < quality * wanted.mean())
    yardstick = _yardstick(made, tables, quality, delta, records)
    return Kept(
        quality, float(np.mean(short)), float(np.mean(long_run)), float(np.mean(shares)), yardstick, draws
    )


def _best(trial: Trial) -> int:
    return trial.router.models.index(trial.router.best)


def _yardstick(
    made: Sequence[Trial], tables: Sequence[Table], quality: float, delta: float, records: int
) -> float:
    """The share of calls of the best model at the fixed slack that keeps the promise with the fewest."""
    draw = np.random.default_rng(1)
    short, shares = [], []
    for trial, (got, best_called) in zip(made, tables, strict=True):
        excess = got - quality * trial.test.scores[:, [_best(trial)]].astype(np.float32)
        for _ in range(max(1, YARDSTICK_DRAWS // len(made) // _AT_ONCE)):
            looked = np.zeros((_AT_ONCE, len(got)), np.float32)
            for row in looked:
                row[draw.permutation(len(row))[:records]] = 1
            short.append((looked @ excess < 0).mean(axis=0))
            shares.append(best_called.mean(axis=0))
    kept = np.mean(short, axis=0) <= delta
    return float(np.mean(shares, axis=0)[kept].min())


def _realised(trial: Trial, rows: NDArray[np.intp], slack: float) -> tuple[float, float]:
    """The quality of these records as a share of the best model's, and the share of its calls."""
    best = _best(trial)
    models = chosen(trial.good[rows], best, slack)
    scores = trial.test.scores[rows]
    got = scores[np.arange(len(rows)), models]
    return float(got.mean() / scores[:, best].mean()), float((models == best).mean())


def _table(trial: Trial, grid: Floats) -> Table:
    """The score of each record at each slack, and whether the best model was called, (N, len(grid))."""
    best, rows = _best(trial), np.arange(len(trial.test))
    models = [chosen(trial.good, best, float(slack)) for slack in grid]
    scores = [trial.test.scores[rows, each].astype(np.float32) for each in models]
    return np.stack(scores, axis=1), np.stack([each == best for each in models], axis=1)
