"""The measures of a router: what is recovered of the gap between two models."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.routing.curve import recovered_gap, recovery


def test_a_perfect_order_recovers_the_gap_with_the_fewest_strong_calls() -> None:
    weak, strong = np.array([1.0, 1, 0, 0, 0]), np.array([1.0, 1, 1, 1, 0])
    measured = recovery(strong - weak, weak, strong)
    assert measured.cpt_50 == pytest.approx(0.2)
    assert measured.cpt_80 == pytest.approx(0.4)
    assert measured.apgr == pytest.approx(1 - 0.4 / 2)


def test_no_preference_recovers_as_much_as_random_calls() -> None:
    draw = np.random.default_rng(0)
    weak, strong = (draw.random(1000) < 0.6).astype(float), (draw.random(1000) < 0.8).astype(float)
    assert recovery(np.zeros(1000), weak, strong).apgr == pytest.approx(0.5)


def test_more_than_the_gap_is_recovered_where_the_weak_model_is_the_better_one() -> None:
    gap = recovered_gap(np.array([2.0, 1, 0]), np.array([0.0, 0, 1]), np.array([1.0, 1, 0]))
    np.testing.assert_allclose(gap, [0, 1, 2, 1])
