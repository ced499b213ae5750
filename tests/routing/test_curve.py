"""The measures of a router: what is recovered of the gap between two models."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.routing.curve import Ranking, interval


def test_a_perfect_order_recovers_the_gap_with_the_fewest_strong_calls() -> None:
    weak, strong = np.array([1.0, 1, 0, 0, 0]), np.array([1.0, 1, 1, 1, 0])
    measured = Ranking.of(strong - weak, weak, strong).recovery()
    assert measured.cpt_50 == pytest.approx(0.2)
    assert measured.cpt_80 == pytest.approx(0.4)
    assert measured.apgr == pytest.approx(1 - 0.4 / 2)


def test_no_preference_recovers_as_much_as_random_calls() -> None:
    draw = np.random.default_rng(0)
    weak, strong = (draw.random(1000) < 0.6).astype(float), (draw.random(1000) < 0.8).astype(float)
    assert Ranking.of(np.zeros(1000), weak, strong).recovery().apgr == pytest.approx(0.5)


def test_more_than_the_gap_is_recovered_where_the_weak_model_is_the_better_one() -> None:
    ranking = Ranking.of(np.array([2.0, 1, 0]), np.array([0.0, 0, 1]), np.array([1.0, 1, 0]))
    assert ranking.recovery().apgr == pytest.approx((0.5 + 1.5 + 1.5) / 3)


def test_a_prompt_of_weight_two_counts_as_two() -> None:
    draw = np.random.default_rng(0)
    weak, strong = (draw.random(300) < 0.6).astype(float), (draw.random(300) < 0.8).astype(float)
    preference, often = draw.random(300), draw.integers(0, 3, 300)
    twice = [np.repeat(values, often) for values in (preference, weak, strong)]
    weighted = Ranking.of(preference, weak, strong).recovery(often.astype(float))
    assert weighted.apgr == pytest.approx(Ranking.of(*twice).recovery().apgr)


def test_draws_without_a_gap_are_left_out_of_the_bounds() -> None:
    ranking = Ranking.of(np.array([3.0, 2, 1]), np.array([0.0, 1, 0]), np.array([1.0, 0, 1]))
    assert np.isnan(ranking.recovery(np.array([0.0, 3, 0])).apgr)
    low, high = interval([(ranking, np.arange(3))], 3)
    assert np.isfinite([low.apgr, high.apgr]).all()


def test_bounds_lie_around_the_mean() -> None:
    draw = np.random.default_rng(0)
    weak, strong = (draw.random(500) < 0.6).astype(float), (draw.random(500) < 0.8).astype(float)
    rankings = [
        (Ranking.of(2 * draw.random(500) + strong - weak, weak, strong), np.arange(500)) for _ in range(3)
    ]
    low, high = interval(rankings, 500)
    mean = np.mean([ranking.recovery().apgr for ranking, _ in rankings])
    assert low.apgr < mean < high.apgr
