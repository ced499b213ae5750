"""How well answers' times are foreseen, with noise, outliers, load and change."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.latency import Correction, Latency

Truth = Callable[[int, int, float], float]


def errors(truth: Truth, *, count: int = 400, noise: float = 0.15, outliers: float = 0.0) -> np.ndarray:
    """Relative errors of first tokens that are foreseen before they are seen, one request a second."""
    latency, draw, found = Latency(), np.random.default_rng(0), []
    for at in range(count):
        tokens, others = int(draw.integers(20, 8000)), int(draw.integers(0, 12))
        seconds = truth(tokens, others, at) * draw.lognormal(0, noise)
        if draw.random() < outliers:
            seconds *= 20
        found.append(abs(latency.first_token(tokens, others) / seconds - 1))
        latency.observed(tokens, seconds, None, others, float(at))
    return np.array(found)


def steady(tokens: int, others: int, at: float) -> float:
    return (0.3 + tokens * 2e-4) * (1 + 0.1 * others)


def test_first_tokens_are_foreseen_within_a_quarter_at_the_median() -> None:
    assert np.median(errors(steady)) < 0.15
    assert np.median(errors(steady, count=20)[5:]) < 0.25


def test_outliers_do_not_spoil_it() -> None:
    assert np.median(errors(steady, outliers=0.1)) < 0.17


@pytest.mark.parametrize("factor", [0.05, 40.0])
def test_the_prior_does_not_matter_for_long(factor: float) -> None:
    found = errors(lambda tokens, others, at: factor * steady(tokens, others, at))
    assert np.median(found[2:30]) < 0.3
    assert np.median(found) < 0.17


def test_a_remote_that_becomes_slower_is_followed() -> None:
    found = errors(lambda tokens, others, at: steady(tokens, others, at) * (1 if at < 200 else 4))
    assert np.median(found[210:230]) < 0.25
    assert np.median(found[230:]) < 0.25


def test_a_queue_at_the_remote_is_seen_in_what_runs_there() -> None:
    assert np.median(errors(lambda tokens, others, at: 0.1 + 0.5 * others)[20:]) < 0.2


def test_nine_of_ten_first_tokens_come_by_when_they_are_said_to() -> None:
    latency, draw, kept = Latency(), np.random.default_rng(0), []
    for at in range(500):
        tokens = int(draw.integers(20, 8000))
        seconds = steady(tokens, 0, at) * draw.lognormal(0, 0.5)
        kept.append(seconds <= latency.first_token_by(tokens, 0, 0.95))
        latency.observed(tokens, seconds, 0.02, 0, float(at))
    assert np.mean(kept[20:]) > 0.9
    assert latency.first_token_by(1000, 0) < 4 * latency.first_token(1000, 0)


def test_the_speed_follows_the_load() -> None:
    latency, draw = Latency(), np.random.default_rng(0)
    assert latency.per_token(0) > 0
    for at in range(200):
        others = int(draw.integers(0, 10))
        latency.observed(100, 0.3, 0.01 * (1 + 0.2 * others) * draw.lognormal(0, 0.1), others, float(at))
    assert latency.per_token(0) == pytest.approx(0.01, rel=0.15)
    assert latency.per_token(10) == pytest.approx(0.03, rel=0.15)


def test_predictions_of_others_are_corrected_by_an_offset_and_a_factor() -> None:
    correction, draw = Correction(), np.random.default_rng(0)
    assert correction.corrected(0.5) == pytest.approx(0.5, rel=0.01)
    assert correction.by(0.5) > 0.5
    found = []
    for at in range(200):
        predicted = float(draw.lognormal(-3, 1.5))
        measured = (0.01 + 1.6 * predicted) * float(draw.lognormal(0, 0.15))
        found.append(abs(correction.corrected(predicted) / measured - 1))
        correction.observed(predicted, measured, float(at))
    assert np.median(found) < 0.17
    assert correction.corrected(1.0) == pytest.approx(1.61, rel=0.1)
    assert correction.corrected(0.0) == pytest.approx(0.01, rel=0.2)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.floats(0, 1e6), st.floats(0, 1e3), st.integers(0, 10**4)),
        max_size=30,
    )
)
def test_whatever_was_seen_a_prediction_is_a_positive_time(
    seen: list[tuple[int, float, float, int]],
) -> None:
    latency = Latency()
    for at, (tokens, first, each, others) in enumerate(seen):
        latency.observed(tokens, first, each, others, float(at))
        assert 0 <= latency.first_token(100, 1) <= latency.first_token_by(100, 1) < 1e12
        assert 0 <= latency.per_token(3) < 1e12


def test_what_short_predictions_were_off_by_is_not_multiplied_for_long_ones() -> None:
    correction = Correction()
    for number in range(60):
        correction.observed(0.002 + 0.0001 * (number % 7), 0.05, float(number))
    assert correction.corrected(0.002) == pytest.approx(0.05, rel=0.2)
    assert correction.corrected(0.5) == pytest.approx(0.55, rel=0.2)
    assert correction.by(0.5) < 1.3
    for number in range(60):
        correction.observed(0.5, 1.0, 60.0 + number)
    assert correction.corrected(0.5) == pytest.approx(1.0, rel=0.1)


def test_what_was_learnt_is_taken_up_elsewhere_at_another_time() -> None:
    latency, draw = Latency(), np.random.default_rng(0)
    for at in range(150):
        tokens, others = int(draw.integers(20, 8000)), int(draw.integers(0, 12))
        seconds = 3 * steady(tokens, others, at) * float(draw.lognormal(0, 0.15))
        latency.observed(tokens, seconds, 0.07 if at % 2 else None, others, float(at))
    saved = latency.save()
    assert saved == latency.save(), "as long as nothing is observed"
    later = Latency()
    assert later.load(json.loads(json.dumps(saved)), 1e6)
    for tokens, others in ((50, 0), (1000, 3), (8000, 10)):
        assert later.first_token(tokens, others) == pytest.approx(
            latency.first_token(tokens, others), rel=0.1
        )
        known = latency.first_token_by(tokens, others)
        assert later.first_token_by(tokens, others) == pytest.approx(known, rel=0.1)
        assert later.per_token(others) == pytest.approx(latency.per_token(others), rel=0.1)
    assert later.save() == saved


def test_corrections_are_taken_up_and_with_them_how_far_they_reach() -> None:
    correction, later = Correction(), Correction()
    for number in range(60):
        correction.observed(0.002 + 0.0001 * (number % 7), 0.05, float(number))
    assert later.load(json.loads(json.dumps(correction.save())), 5.0)
    for predicted in (0.002, 0.5):
        assert later.corrected(predicted) == pytest.approx(correction.corrected(predicted), rel=0.02)
        assert later.by(predicted) == pytest.approx(correction.by(predicted), rel=0.02)


@pytest.mark.parametrize(
    "saved",
    [None, [], {"first_token": 3, "per_token": []}, {"first_token": [[[1.0], 0.5, 0.0]], "per_token": []},
     {"first_token": [[[0.0, 1.0, 1.0, 1.0], 0.5, 0.0]], "per_token": []},
     {"first_token": [[[1.0, 1.0, 1.0, 1.0], -0.5, 0.0]], "per_token": []}],
)  # fmt: skip
def test_what_is_damaged_is_not_taken_up(saved: object) -> None:
    latency = Latency()
    assert not latency.load(saved, 0.0)
    assert latency.save() == Latency().save()


def test_nothing_learnt_is_taken_up_as_nothing() -> None:
    latency = Latency()
    assert latency.load(Latency().save(), 0.0)
    assert latency.first_token(100, 1) == Latency().first_token(100, 1)
