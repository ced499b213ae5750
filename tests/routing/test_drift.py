"""Detectors: seldom false, and soon right."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.routing.drift import SELDOM, Calibration, Detector


def first_alarm(values: np.ndarray) -> int | None:
    detector = Detector()
    return next((number for number, value in enumerate(values) if detector.saw(float(value))), None)


@pytest.mark.parametrize(
    ("values", "chances"),
    [([-0.05, 0.95], [0.95, 0.05]), ([-1.0, 0.95], [0.4872, 0.5128]), ([-1.2, 0.0, 1.2], [0.3, 0.4, 0.3])],
)
def test_false_alarms_are_as_far_apart_as_is_said(values: list[float], chances: list[float]) -> None:
    draw = np.random.default_rng(0)
    detector = Detector()
    values = list(np.array(values) - np.dot(values, chances).clip(min=0))  # a mean of 0 or just below
    alarms = sum(detector.saw(float(value)) for value in draw.choice(values, 60_000, p=chances))
    assert alarms <= 60_000 / SELDOM


def test_a_mean_above_zero_is_noticed_soon_however_long_all_was_well() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        well = draw.choice([-0.05, 0.95], 3000, p=[0.98, 0.02])
        ill = draw.choice([-0.05, 0.95], 500, p=[0.7, 0.3])
        found = first_alarm(np.concatenate([well, ill]))
        assert found is not None and 3000 <= found < 3150


def test_after_an_alarm_a_detector_begins_anew() -> None:
    detector = Detector()
    while not detector.saw(0.9):
        pass
    assert detector.evidence == 1.0


def residuals(draw: np.random.Generator, count: int, chance: float, estimate: float) -> np.ndarray:
    return (draw.random(count) < chance) - estimate


def test_a_calibration_that_stays_as_wrong_as_it_was_is_none_that_shifts() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        calibration = Calibration()
        assert not any(map(calibration.saw, residuals(draw, 3000, 0.7, 0.4)))


@pytest.mark.parametrize("after", [0.3, 1.0])
def test_a_shift_of_a_calibration_is_noticed_to_either_side(after: float) -> None:
    draw = np.random.default_rng(0)
    for _ in range(10):
        calibration = Calibration()
        assert not any(map(calibration.saw, residuals(draw, 1000, 0.7, 0.4)))
        assert any(map(calibration.saw, residuals(draw, 800, after, 0.4)))
