"""Without a promise, a share of the best model's quality is one of the average request's."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.routing.bargain import FEWEST, Bargain
from headrace.routing.estimator import HeldOut
from headrace.routing.risk import chosen


def held_out(count: int = 2000, seed: int = 0) -> HeldOut:
    """A cheap model whose chances lie anywhere below those of the best, which are 0.6."""
    draw = np.random.default_rng(seed)
    good = np.stack([0.6 * draw.random(count), np.full(count, 0.6)], axis=1)
    return HeldOut(good, (draw.random((count, 2)) < good).astype(float))


@pytest.mark.parametrize("quality", [0.7, 0.8, 0.9, 0.95])
def test_the_average_keeps_the_quality_on_records_not_seen(quality: float) -> None:
    bargain = Bargain.of(held_out(), best=1)
    assert bargain is not None
    slack = bargain.slack(quality)
    others = held_out(20000, seed=1)
    choices = chosen(np.asarray(others.good), 1, slack)
    got = others.scores[np.arange(20000), choices].mean() / others.scores[:, 1].mean()
    assert got == pytest.approx(quality, abs=0.04)
    assert (choices == 0).mean() > 0.2  # though no single chance is so near to the best one's
    assert (choices == 0).mean() > 2 * (others.good[:, 0] >= quality * 0.6).mean()


def test_more_quality_takes_less_slack() -> None:
    bargain = Bargain.of(held_out(), best=1)
    assert bargain is not None
    slacks = [bargain.slack(quality) for quality in (0.5, 0.8, 0.95, 1.0, 2.0)]
    assert slacks == sorted(slacks, reverse=True) and slacks[-1] == bargain.slacks[0]


def test_few_records_say_nothing() -> None:
    assert Bargain.of(held_out(FEWEST - 1), best=1) is None
    nothing_good = HeldOut(held_out().good, np.zeros((2000, 2)))
    assert Bargain.of(nothing_good, best=1) is None
