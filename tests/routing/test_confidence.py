"""How sure a model was of its answer, and what that says of the answer."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.routing.confidence import FEATURES, FEWEST, Confidence, Told, features, fit, learn


def answers(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features and scores of answers of whose tokens a model is the less sure the likelier they are wrong.

    The next model's scores: it is right where the prompt is easy, whatever the answer was.
    """
    draw = np.random.default_rng(seed)
    numbers, scores, next_scores = [], [], []
    for _ in range(count):
        sure, easy = draw.random(2)
        logprobs = -draw.exponential(0.05 + 0.5 * (1 - sure), int(draw.integers(5, 200)))
        numbers.append(
            features(Told(["so "] * len(logprobs), logprobs.tolist(), "stop", 0.5, 0.1 + 0.8 * easy))
        )
        scores.append(float(draw.random() < sure))
        next_scores.append(float(draw.random() < 0.1 + 0.8 * easy))
    return np.array(numbers), np.array(scores), np.array(next_scores)


def told(unsure: float, next_good: float = 0.5) -> Told:
    """An answer of 50 tokens, on average as unlikely as said."""
    logprobs = -np.random.default_rng(1).exponential(unsure, 50)
    return Told(["so "] * 50, logprobs.tolist(), "stop", 0.5, next_good)


def test_features_are_finite_whatever_the_answer() -> None:
    for each in (
        Told([], [], "stop", 0.0, 1.0),
        Told(["7"], [0.0], "length", 1.0, 0.0),
        Told(["a", "", "4"], [float("-inf"), -1e9, -0.1], "stop", 0.5, 0.5),
        Told(["ab"] * 5000, [-0.1] * 5000, "tool_calls", 0.2, 0.3),
    ):
        numbers = features(each)
        assert numbers.shape == (FEATURES,)
        assert np.isfinite(numbers).all()


def test_doubt_about_a_number_shows_apart_from_doubt_about_a_word() -> None:
    tokens, sure = ["It", " is ", "12", "."], -0.01
    about_word = features(Told(tokens, [sure, -2.0, sure, sure], "stop", 0.5, 0.5))
    about_number = features(Told(tokens, [sure, sure, -2.0, sure], "stop", 0.5, 0.5))
    assert np.flatnonzero(about_word != about_number).size > 0


def test_an_answer_the_model_was_sure_of_is_likelier_to_be_good() -> None:
    learnt = learn(*answers(600))
    assert learnt.chance(told(0.06)) > 0.75
    assert learnt.chance(told(0.5)) < 0.25


def test_chances_are_calibrated() -> None:
    learnt = learn(*answers(2000))
    numbers, scores, next_scores = answers(4000, seed=1)
    for curve, came in ((learnt.own, scores), (learnt.next, next_scores)):
        chances = curve.chances(numbers)
        for lower in (0.0, 0.25, 0.5, 0.75):
            within = (chances >= lower) & (chances < lower + 0.25)
            assert within.sum() < 50 or abs(chances[within].mean() - came[within].mean()) < 0.07


def test_the_next_model_is_not_asked_where_it_would_do_no_better() -> None:
    learnt = learn(*answers(2000))
    doubtful = 0.5
    hard, easy = told(doubtful, next_good=0.1), told(doubtful, next_good=0.9)
    assert learnt.chance(easy) < learnt.next_chance(easy) - 0.1
    assert learnt.chance(hard) >= learnt.next_chance(hard) - 0.1
    assert learnt.next_chance(told(doubtful, next_good=0.9)) > learnt.next_chance(
        told(doubtful, next_good=0.1)
    )


def test_what_was_learnt_is_plain_data() -> None:
    learnt = learn(*answers(100))
    again = msgspec.json.decode(msgspec.json.encode(learnt), type=Confidence)
    assert again == learnt
    assert again.chance(told(0.2)) == learnt.chance(told(0.2))


def test_where_features_tell_nothing_the_chance_is_the_share_of_good_answers() -> None:
    numbers, _, _ = answers(800)
    scores = (np.random.default_rng(5).random(800) < 0.3).astype(np.float64)
    chances = fit(numbers, scores).chances(numbers)
    assert abs(chances.mean() - scores.mean()) < 0.01
    assert chances.std() < 0.08


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_scores_all_alike_leave_chances_within_bounds(score: float) -> None:
    numbers, _, _ = answers(100)
    chances = fit(numbers, np.full(100, score)).chances(numbers)
    assert np.abs(chances - score).max() < 0.1
    assert ((chances > 0) & (chances < 1)).all()


def test_too_few_answers_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"at least {FEWEST}"):
        learn(*answers(FEWEST - 1))
