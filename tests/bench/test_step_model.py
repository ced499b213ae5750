"""The line through timed steps, and that the steps of a real model are timed."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench import slowdown
from headrace.bench.step_model import fit, run


def samples(base: float, row: float, context: float) -> np.ndarray:
    random = np.random.default_rng(1)
    rows, tokens = random.integers(1, 256, 200), random.integers(1, 20_000, 200)
    return np.stack([rows, tokens, base + row * rows + context * tokens], axis=1)


def test_a_line_is_found_however_disturbed_a_few_steps_were():
    timed = samples(0.01, 0.002, 3e-7)
    timed[::50, 2] *= 4
    line, error = fit(timed)
    assert line == pytest.approx([0.01, 0.002, 3e-7], rel=1e-3) and error < 1e-3


def test_nothing_takes_less_than_no_time():
    line, _ = fit(samples(0.01, 0.002, -1e-8))
    assert line[2] == 0 and line[1] == pytest.approx(0.002, rel=0.1)


def test_a_models_steps_are_timed(synthetic_model):
    found = run(str(synthetic_model), threads=1)
    assert found["base"] + found["row"] > 0 and found["steps"] > 100
    assert "slowdown" not in found


def test_workers_that_compute_at_once_are_compared_with_one(synthetic_model, monkeypatch):
    monkeypatch.setattr(slowdown, "_SECONDS", 0.3)
    found = run(str(synthetic_model), threads=1, workers=2)["slowdown"]
    assert len(found) == 2 and found[0] == 1 and found[1] > 0.5
