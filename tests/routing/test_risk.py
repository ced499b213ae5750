"""Promises about quality, and whether they are kept."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.routing.risk import ALWAYS_BEST, chosen, greatest_slack, p_value


def drawn(count: int, seed: int, skill: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Chances of two models for so many prompts, told with `skill`, and the scores that came of them."""
    draw = np.random.default_rng(seed)
    weak = draw.uniform(0.3, 0.9, count)
    true = np.stack([weak, np.minimum(weak + draw.choice([0.0, 0.4], count), 0.95)], axis=1)
    told = skill * true + (1 - skill) * np.flip(true, axis=0)
    return told, (draw.random((count, 2)) < true).astype(np.float64)


def test_a_cheaper_model_is_chosen_where_the_best_one_is_little_better() -> None:
    good = np.array([[0.5, 0.6, 0.9], [0.5, 0.85, 0.9], [0.85, 0.2, 0.9], [0.95, 0.1, 0.9]])
    np.testing.assert_array_equal(chosen(good, 2, 0.1), [2, 1, 0, 0])
    np.testing.assert_array_equal(chosen(good, 2, ALWAYS_BEST), [2, 2, 2, 2])


def test_without_an_edge_a_bet_seldom_wins() -> None:
    draw = np.random.default_rng(0)
    values = np.array([-0.9, 0.1])
    wins = sum(p_value(draw.choice(values, 500, p=[0.1, 0.9]), 0.9, 0.05) <= 0.05 for _ in range(2000))
    assert wins / 2000 <= 0.05


def test_with_an_edge_a_bet_wins() -> None:
    draw = np.random.default_rng(0)
    assert p_value(draw.choice([-0.9, 0.1], 1000, p=[0.05, 0.95]), 0.9, 0.05) < 0.01


@pytest.mark.parametrize("skill", [1.0, 0.0])
def test_a_promise_is_kept_whether_or_not_the_estimator_has_skill(skill: float) -> None:
    all_good, all_scores = drawn(50_000, 0, skill)
    wanted, short = 0.95 * all_scores[:, 1].mean(), 0
    for seed in range(60):
        slack = greatest_slack(*drawn(500, seed + 1, skill), 1, 0.95, 0.05, 1000)
        got = all_scores[np.arange(50_000), chosen(all_good, 1, slack)].mean()
        short += bool(got < wanted)
    assert short <= 5


def test_more_records_leave_more_to_the_cheaper_model() -> None:
    shares = []
    for count in (200, 1000, 8000):
        good, scores = drawn(count, 0)
        slack = greatest_slack(good, scores, 1, 0.95, 0.05, 10**6)
        shares.append((chosen(good, 1, slack) == 1).mean())
    assert shares[0] > shares[1] > shares[2]


def test_where_nothing_can_be_shown_the_best_model_answers_everything() -> None:
    good, scores = drawn(30, 0)
    assert greatest_slack(good, scores, 1, 0.999, 0.05, 1000) == ALWAYS_BEST
