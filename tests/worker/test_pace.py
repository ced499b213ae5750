"""The worker's own measure of its steps."""

from __future__ import annotations

from random import Random

import pytest

from headrace.worker.pace import Pace


def test_the_line_is_found_among_noise_and_disturbed_steps() -> None:
    random, pace = Random(1), Pace()
    for _ in range(2000):
        rows = random.choice([1, 3, 8, 64, 256])
        disturbed = 50.0 if random.random() < 0.01 else 1.0
        pace.step(rows, (0.004 + 0.0003 * rows) * random.uniform(0.9, 1.1) * disturbed)
    base, row = pace.line
    assert base == pytest.approx(0.004, rel=0.1)
    assert row == pytest.approx(0.0003, rel=0.1)


def test_little_is_not_told_and_steps_of_one_size_are_their_rows() -> None:
    pace = Pace()
    for _ in range(10):
        pace.step(4, 0.01)
    assert pace.line == (0.0, 0.0)
    for _ in range(100):
        pace.step(4, 0.01)
    assert pace.line == (0.0, pytest.approx(0.0025))
    pace.step(0, 1.0)
    assert pace.line[1] == pytest.approx(0.0025)
