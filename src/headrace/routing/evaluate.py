"""How good a router learnt from so many labelled records is: on the rest, over several divisions of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.routing.curve import Ranking, Recovery, interval
from headrace.routing.records import Records, split
from headrace.routing.router import Router
from headrace.routing.train import train

Floats = NDArray[np.float64]

TIMED = 1000
LONGEST = 8000
"""Letters of the longest prompt that is timed: some 2000 tokens."""


@dataclass(frozen=True)
class Trial:
    """One division: the router learnt, and what it says of the prompts held out, `good`, (N, M).

    `questions`: (N,), which of all the questions each held-out prompt is.
    """

    router: Router
    test: Records
    good: Floats
    questions: NDArray[np.intp]


@dataclass(frozen=True)
class Evaluation:
    """Means over the divisions, their bounds of 95% confidence, and the milliseconds of a slow decision."""

    mean: Recovery
    low: Recovery
    high: Recovery
    seeds: tuple[Recovery, ...]
    decision_ms_p99: float


def trials(
    records: Records, labels: int, seeds: int, test: Records | None, tell: Callable[[str], None]
) -> list[Trial]:
    """A division for each seed: `labels` records to learn from, the rest, or all of `test`, held out.

    No prompt is on both sides. Raises ConfigError where the records do not suffice.
    """
    if labels >= len(records) and test is None:
        raise ConfigError(f"{len(records)} records, {labels} of them to learn from, leave none to test with")
    made = []
    for seed in range(seeds):
        learnt_from, rest = split(records.prompts, labels, seed)
        router = Router(train(records.take(learnt_from), seed))
        if test is not None:
            seen = {records.prompts[row] for row in learnt_from}
            rest = np.array([row for row, prompt in enumerate(test.prompts) if prompt not in seen], np.intp)
        held_out = (records if test is None else test).take(rest)
        if not len(held_out):
            raise ConfigError("every prompt to test with is among those to learn from")
        made.append(Trial(router, held_out, router.estimator.estimates(held_out.prompts), rest))
        tell(f"seed {seed}: learnt from {len(learnt_from)} records, tested on {len(held_out)}")
    return made


def evaluate(made: Sequence[Trial], clock: Callable[[], float]) -> Evaluation:
    """What the trials recover of the gap between the cheapest model and the best; `clock` in seconds."""
    rankings = [_ranking(trial) for trial in made]
    each = [ranking.recovery() for ranking, _ in rankings]
    low, high = interval(rankings, 1 + max(int(trial.questions.max()) for trial in made))
    mean = Recovery(*np.mean([astuple(recovery) for recovery in each], axis=0).tolist())
    return Evaluation(mean, low, high, tuple(each), _slow_decision(made[0], clock))


def _ranking(trial: Trial) -> tuple[Ranking, NDArray[np.intp]]:
    best = trial.router.models.index(trial.router.best)
    known = np.flatnonzero(~np.isnan(trial.test.scores[:, [0, best]]).any(axis=1))
    scores, good = trial.test.scores[known], trial.good[known]
    if not len(known):
        raise ConfigError(
            f"no prompt to test with has scores of both {trial.router.models[0]} and {trial.router.best}"
        )
    if best == 0 or scores[:, best].mean() <= scores[:, 0].mean():
        raise ConfigError(f"{trial.router.models[0]}, named first as the cheapest, is also the best: no gap")
    return Ranking.of(good[:, best] - good[:, 0], scores[:, 0], scores[:, best]), trial.questions[known]


def _slow_decision(trial: Trial, clock: Callable[[], float]) -> float:
    """The 99th percentile of the milliseconds of a decision, for prompts of all lengths up to LONGEST."""
    text = "\n\n".join(islice(trial.test.prompts, 2000))
    text *= 1 + 2 * LONGEST // max(1, len(text))
    draw = np.random.default_rng(0)
    taken = []
    for length in draw.integers(1, LONGEST, size=TIMED).tolist():
        first = int(draw.integers(len(text) - length))
        prompt = text[first : first + length]
        begun = clock()
        trial.router.decide(prompt, 0.95)
        taken.append(clock() - begun)
    return float(np.quantile(taken, 0.99)) * 1000
