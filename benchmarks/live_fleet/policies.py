"""What each policy would have made of the questions held out, over all settings of its one knob.

The knob is the worth of a good answer, in what an answer of the dearest model costs: a model is asked where
the chance that it adds is worth what it adds in cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from live_fleet.outlook import Division, Outlook, Step
from live_fleet.table import Table

Floats = NDArray[np.float64]

WORTHS = np.geomspace(0.05, 200.0, 120)


Played = tuple[Floats, Floats]
"""Score and cost of each question, (N,) both; of several settings (K, N)."""

Policy = Callable[[Table, Division, Outlook, float], Played]
"""What came of an outlook's questions where a good answer is worth so much."""


def everywhere(table: Table, division: Division, of: Outlook, policy: Policy) -> Played:
    """At all settings, (K, N) both; the last one always asks the model that was the best one."""
    played = [policy(table, division, of, worth) for worth in WORTHS.tolist()]
    best = int(table.scores[division.learnt.rows].mean(axis=0).argmax())
    played.append(_asked(table, of, np.full(len(of.rows), best)))
    scores, costs = zip(*played, strict=True)
    return np.array(scores), np.array(costs)


def joined(parts: Sequence[Played]) -> Played:
    """Several divisions' questions one after the other."""
    scores, costs = zip(*parts, strict=True)
    return np.concatenate(scores, axis=-1), np.concatenate(costs, axis=-1)


def by_prompt(table: Table, division: Division, of: Outlook, worth: float) -> Played:
    """One model, chosen from the prompt alone."""
    usual = _usual(table, division)
    return _asked(table, of, (worth * of.good - usual).argmax(axis=1))


def cascade(step: Step) -> Policy:
    """One model first; the next one where what it adds to the chance is worth its cost."""

    def policy(table: Table, division: Division, of: Outlook, worth: float) -> Played:
        first, following = step
        goes_on = worth * (of.following[step] - of.own[step]) > _usual(table, division)[following]
        scores, costs = table.scores[of.rows], table.costs[of.rows]
        return (
            np.where(goes_on, scores[:, following], scores[:, first]),
            costs[:, first] + goes_on * costs[:, following],
        )

    return policy


def auto(table: Table, division: Division, of: Outlook, worth: float) -> Played:
    """The single model or the cascade that seems best for the prompt.

    How well each does with a prompt is told by a regression on the chances, learnt from what each made of
    the questions that were learnt from.
    """
    learnt = division.learnt
    dearest = table.costs[learnt.rows].mean(axis=0)[-1]
    values, results = [], []
    for plan in (*(_always(model) for model in range(len(table.models))), *map(cascade, learnt.own)):
        scores, costs = plan(table, division, learnt, worth)
        values.append(_predicted(learnt.good, worth * scores - costs / dearest, of.good))
        results.append(plan(table, division, of, worth))
    best = np.array(values).argmax(axis=0)
    scores, costs = (np.array(part) for part in zip(*results, strict=True))
    each = np.arange(len(best))
    return scores[best, each], costs[best, each]


def _always(model: int) -> Policy:
    def policy(table: Table, division: Division, of: Outlook, worth: float) -> Played:
        return _asked(table, of, np.full(len(of.rows), model))

    return policy


def _asked(table: Table, of: Outlook, chosen: NDArray[np.intp]) -> Played:
    return table.scores[of.rows, chosen], table.costs[of.rows, chosen]


def _usual(table: Table, division: Division) -> Floats:
    """What each model's answers cost among those learnt from, in the dearest one's, (M,)."""
    costs = table.costs[division.learnt.rows].mean(axis=0)
    return np.asarray(costs / costs[-1])


def _predicted(good: Floats, values: Floats, of: Floats) -> Floats:
    """Ridge regression of a plan's values on the chances' log-odds, (N, M) and (N,), for others, (L, M)."""
    inputs, others = (np.log(chances / (1 - chances)) for chances in (good, of))
    centre, scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
    inputs, others = (inputs - centre) / scale, (others - centre) / scale
    bend = inputs.T @ inputs + 0.05 * len(inputs) * np.eye(inputs.shape[1])
    weights = np.linalg.solve(bend, inputs.T @ (values - values.mean()))
    return np.asarray(values.mean() + others @ weights)
