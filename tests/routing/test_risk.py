"""Promises about quality, and whether they are kept."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.routing.estimator import HeldOut
from headrace.routing.risk import ALWAYS_BEST, bets_won, chosen, greatest_slack


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


@pytest.mark.parametrize("count", [50, 1000])
@pytest.mark.parametrize(
    ("values", "shares"), [([-0.9, 0.1], [0.1, 0.9]), ([-1.0, 0.0, 0.5], [0.2, 0.4, 0.4])]
)
def test_without_an_edge_bets_are_seldom_won(values: list[float], shares: list[float], count: int) -> None:
    excess = np.random.default_rng(0).choice(values, (count, 4000), p=shares)
    assert bets_won(excess, 1.0, 0.05).mean() <= 0.05


def test_bets_see_an_edge_nearly_as_soon_as_the_normal_approximation_does() -> None:
    excess = np.random.default_rng(0).choice([-0.45, 0.55], (1000, 4000), p=[0.5, 0.5])
    normal = excess.mean(axis=0) > 1.645 * excess.std(axis=0) / np.sqrt(1000)
    assert normal.mean() > 0.9
    assert bets_won(excess, 0.45, 0.05).mean() > 0.95 * normal.mean()


def test_a_bet_is_not_won_by_a_few_lucky_records() -> None:
    assert not bets_won(np.full((20, 1), 0.1), 0.9, 0.05)[0]
    assert bets_won(np.full((50, 1), 0.1), 0.9, 0.05)[0]


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
        records = [drawn(count, seed) for seed in range(4)]
        chose = [chosen(each[0], 1, greatest_slack(*each, 1, 0.95, 0.05, 10**6)) for each in records]
        shares.append(np.mean([(models == 1).mean() for models in chose]))
    assert shares[0] > shares[1] > shares[2]


def test_where_nothing_can_be_shown_the_best_model_answers_everything() -> None:
    good, scores = drawn(30, 0)
    assert greatest_slack(good, scores, 1, 0.999, 0.05, 1000) == ALWAYS_BEST


def test_records_that_were_learnt_from_steady_the_slack() -> None:
    alone, steadied = [], []
    for seed in range(20):
        records, learnt = drawn(1000, seed), HeldOut(*drawn(4000, 100 + seed))
        alone.append(greatest_slack(*records, 1, 0.9, 0.05, 1000))
        steadied.append(greatest_slack(*records, 1, 0.9, 0.05, 1000, learnt))
    assert np.std(steadied) < np.std(alone)


def test_records_learnt_from_elsewhere_break_no_promise() -> None:
    all_good, all_scores = drawn(50_000, 0)
    elsewhere, _ = drawn(1500, 1)
    learnt, short = HeldOut(elsewhere, np.ones_like(elsewhere)), 0  # there the cheap model is always right
    for seed in range(60):
        slack = greatest_slack(*drawn(500, seed + 1), 1, 0.95, 0.05, 1000, learnt)
        got = all_scores[np.arange(50_000), chosen(all_good, 1, slack)].mean()
        short += bool(got < 0.95 * all_scores[:, 1].mean())
    assert short <= 6
