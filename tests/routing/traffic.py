"""Requests made for tests of a promise: what two models' answers are worth, and what is estimated of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.routing.risk import ALWAYS_BEST, least
from headrace.routing.watch import Watch

Floats = NDArray[np.float64]

MODELS = ("small", "large")
COSTS = (0.1, 1.0)


def traffic(count: int, seed: int, worse: float = 0.0) -> tuple[Floats, Floats]:
    """Chances of a good answer as estimated, and scores, (count, 2) each; half the prompts are easy for both.

    `worse`: by how much the cheap model is worse than what is estimated.
    """
    draw = np.random.default_rng(seed)
    strong = draw.uniform(0.6, 0.98, count)
    gap = np.where(draw.random(count) < 0.5, draw.uniform(-0.05, 0.1, count), draw.uniform(0.1, 0.6, count))
    true = np.stack([np.clip(strong - gap, 0.02, 0.98), strong], axis=1)
    good = np.clip(true + draw.normal(0, 0.05, (count, 2)), 0, 1)
    luck = draw.random((count, 2))
    alike = draw.random(count) < 0.6  # what is hard for one is hard for the other, too
    luck[alike, 1] = luck[alike, 0]
    return good, (luck < np.clip(true - [worse, 0], 0, 1)).astype(np.float64)


@dataclass(frozen=True)
class Served:
    """What came of requests: the scores clients got, and the best model's; which model; at which requests
    alarms were raised."""

    got: Floats
    wanted: Floats
    models: NDArray[np.intp]
    alarms: tuple[int, ...]

    @property
    def quality(self) -> float:
        return float(self.got.mean() / self.wanted.mean())

    @property
    def strong(self) -> float:
        return float((self.models == 1).mean())

    def since(self, request: int) -> Served:
        return Served(self.got[request:], self.wanted[request:], self.models[request:], ())


def will_do(watch: Watch, good: Floats) -> list[bool]:
    """Which models will do for a request of the watched quality, as `Quality.judge` asks the watch."""
    enough = least(float(good[watch.best]), watch.quality, watch.slack_for(watch.quality, None))
    return [each >= enough or place == watch.best for place, each in enumerate(good.tolist())]


def serve(watch: Watch, good: Floats, scores: Floats, seed: int, costs: Sequence[float] = COSTS) -> Served:
    """Sends each request to the first model that will do, and scores in the shadow what the watch wants."""
    draw = np.random.default_rng([seed, 1])  # not the draws that traffic is made with
    models, alarms = [], []
    for number, (chances, score) in enumerate(zip(good, scores, strict=True)):
        model = will_do(watch, chances).index(True)
        models.append(model)
        watch.earned(costs[model])
        if watch.wants_sample(float(draw.random())):
            watch.spent(sum(costs[each] for each in watch.asks(chances, model)))
            before = watch.slack
            watch.scored(chances, score, model)
            if watch.slack == ALWAYS_BEST != before:
                alarms.append(number)
    rows = np.arange(len(scores))
    return Served(scores[rows, models], scores[:, 1], np.array(models), tuple(alarms))
