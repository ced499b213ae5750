"""Steps of a real engine, each with its rows, their context, and the seconds that it took."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from random import Random
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.backends.base import Backend, Ticket
from headrace.backends.step import StepPlan
from headrace.bench.drive import greedy_requests
from headrace.engine.engine import Engine

Samples = NDArray[np.float64]
"""[steps, 3]: rows, tokens of context that all of them attend to, seconds."""
_OUTPUTS = 24


class _Watched:
    """A backend, and how many rows and tokens of context its last plan had."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self.rows = self.context = 0

    def submit(self, plan: StepPlan) -> Ticket:
        self.rows, self.context = plan.rows, int(plan.positions.sum()) + plan.rows
        return self._backend.submit(plan)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def timed_steps(engine: Engine, batch: tuple[int, int], until: float = math.inf) -> Samples:
    """Every step of so many requests with prompts of so many tokens.

    None begins after `until`, a time of time.monotonic's.
    """
    requests, length = batch
    prompts = _prompts(requests, length, engine.backend.vocab_size)
    watched = _Watched(engine.backend)
    engine.backend = cast(Backend, watched)
    samples: list[Sequence[float]] = []
    asked = greedy_requests(prompts, _OUTPUTS, prefix_cache=False)
    try:
        for request in asked:
            engine.add(request)
        start = time.monotonic()
        while start < until and engine.submit():
            engine.collect()
            end = time.monotonic()
            samples.append((watched.rows, watched.context, end - start))
            start = end
        for request in asked:
            engine.cancel(request.id)
    finally:
        engine.backend = watched._backend
    return np.array(samples).reshape(-1, 3)


def _prompts(requests: int, length: int, vocabulary: int) -> list[list[int]]:
    random = Random(0)
    return [[random.randrange(vocabulary) for _ in range(length)] for _ in range(requests)]
