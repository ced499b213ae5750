"""How long a step takes by its rows and their context: what `headrace simulate` reckons with."""

from __future__ import annotations

import numpy as np

from headrace.bench import slowdown
from headrace.bench.timed_steps import Samples, timed_steps
from headrace.fleet.step_time import StepTime
from headrace.worker.loader import load, open_model
from headrace.worker.settings import WorkerSettings

BATCHES = ((1, 64), (1, 1500), (4, 200), (8, 64), (8, 700), (16, 150))
"""Requests at a time, and tokens of each prompt: steps of prefill, of decode, and of both."""
_OUTLIER = 1.5
"""A step that took so many times what the others say was disturbed."""


def run(model: str, threads: int | None = None, workers: int = 1) -> dict[str, object]:
    """Time the steps of several batches and fit a line; then again while several workers compute at once.

    Returns:
        base, row, context: seconds of a step, of each row, and of each token that a row attends to.
        slowdown: how many times as long steps take while 1, 2 ... `workers` compute; left out for one.
        steps: how many were timed. error: their mean relative deviation from the line.
    """
    settings = WorkerSettings(model=model, threads=threads, max_running=max(BATCHES)[0], prefix_cache=False)
    loaded = load(open_model(model), settings)
    try:
        timed_steps(loaded.engine, (1, 64))
        samples = np.concatenate([timed_steps(loaded.engine, batch) for batch in BATCHES])
    finally:
        loaded.close()
    line, error = fit(samples)
    found: dict[str, object] = dict(zip(("base", "row", "context"), line, strict=True))
    if workers > 1:
        base, row, context = line
        step_time = StepTime(base=base, row=row, context=context)
        found["slowdown"] = slowdown.measure(settings, step_time, workers)
    return found | {"steps": len(samples), "error": error}


def fit(samples: Samples) -> tuple[list[float], float]:
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


def _least_squares(samples: Samples) -> Samples:
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
