"""How long a step takes by its rows and their context: what `headrace simulate` reckons with."""

from __future__ import annotations

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
from headrace.worker.loader import load, open_model
from headrace.worker.settings import WorkerSettings

BATCHES = ((1, 64), (1, 1500), (4, 200), (8, 64), (8, 700), (16, 150))
"""Requests at a time, and tokens of each prompt: steps of prefill, of decode, and of both."""
_OUTPUTS = 24
_OUTLIER = 1.5
"""A step that took so many times what the others say was disturbed."""
_Samples = NDArray[np.float64]


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


def run(model: str, threads: int | None = None) -> dict[str, float | int]:
    """Time the steps of several batches and fit a line.

    Returns:
        base, row, context: seconds of a step, of each row, and of each token that a row attends to.
        steps: how many were timed. error: their mean relative deviation from the line.
    """
    settings = WorkerSettings(model=model, threads=threads, max_running=max(BATCHES)[0], prefix_cache=False)
    loaded = load(open_model(model), settings)
    try:
        _timed(loaded.engine, (1, 64))
        samples = np.concatenate([_timed(loaded.engine, batch) for batch in BATCHES])
    finally:
        loaded.close()
    line, error = fit(samples)
    return dict(zip(("base", "row", "context"), line, strict=True)) | {"steps": len(samples), "error": error}


def fit(samples: _Samples) -> tuple[list[float], float]:
    """The line through samples of (rows, context, seconds), and its mean relative error.

    Least squares of the relative errors, none of the three below zero; then once more without outliers.
    """
    kept = samples
    for _ in range(2):
        line = _least_squares(kept)
        predicted = samples[:, :2] @ line[1:] + line[0]
        kept = samples[samples[:, 2] < _OUTLIER * predicted]
    errors = np.abs(kept[:, :2] @ line[1:] + line[0] - kept[:, 2]) / kept[:, 2]
    return [float(f"{value:.4g}") for value in line], round(float(errors.mean()), 4)


def _least_squares(samples: _Samples) -> _Samples:
    seconds = samples[:, 2:]
    columns = np.hstack([np.ones_like(seconds), samples[:, :2]]) / seconds
    used = [0, 1, 2]
    while True:
        found = np.linalg.lstsq(columns[:, used], np.ones(len(samples)), rcond=None)[0]
        if (found >= 0).all():
            line = np.zeros(3)
            line[used] = found
            return line
        used.remove(used[int(found.argmin())])


def _timed(engine: Engine, batch: tuple[int, int]) -> _Samples:
    """(rows, context, seconds) of every step that a batch takes."""
    requests, length = batch
    prompts = _prompts(requests, length, engine.backend.vocab_size)
    watched = _Watched(engine.backend)
    engine.backend = cast(Backend, watched)
    samples: list[Sequence[float]] = []
    try:
        for request in greedy_requests(prompts, _OUTPUTS, prefix_cache=False):
            engine.add(request)
        start = time.perf_counter()
        while engine.submit():
            engine.collect()
            end = time.perf_counter()
            samples.append((watched.rows, watched.context, end - start))
            start = end
    finally:
        engine.backend = watched._backend
    return np.array(samples)


def _prompts(requests: int, length: int, vocabulary: int) -> list[list[int]]:
    random = Random(0)
    return [[random.randrange(vocabulary) for _ in range(length)] for _ in range(requests)]
