"""Estimates by the fleet's names, for tiers that share weights and models that the router does not know."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.routing.quality import Quality
from headrace.routing.router import Router
from headrace.routing.train import train
from routing.questions import questions

EASY, HARD = "What is the capital of Chad?", "Compute the integral of x over the unit sphere, then simplify."
ALIASES = {"slow-small": "small", "fast-small": "small", "big": "large", "new": "new"}
ORDER = ("slow-small", "fast-small", "new", "big")


@pytest.fixture(scope="module")
def router() -> Router:
    return Router(train(questions(600))).calibrated(questions(500, seed=5), [0.9])


def test_tiers_of_the_same_weights_share_one_estimate(router: Router) -> None:
    judged = Quality(router, ALIASES, ORDER).judge(HARD, 0.95)
    estimate = router.decide(HARD, 0.9).estimate
    assert judged["slow-small"] == judged["fast-small"]
    np.testing.assert_allclose(judged["slow-small"].good, estimate.good[0], atol=1e-6)
    np.testing.assert_allclose(judged["big"][:2], (estimate.good[1], estimate.spread[1]), atol=1e-6)
    assert (judged["slow-small"].will_do, judged["big"].will_do) == (False, True)


def test_a_model_that_nobody_knows_is_judged_by_its_place_in_the_order_of_costs(router: Router) -> None:
    for known in (router, None):
        quality = Quality(known, ALIASES, ORDER)
        assert set(quality.judge(EASY, 0.9)) == set(ORDER)
        assert 0 < quality.judge(EASY, 0.9)["new"].good < 1
    judged = Quality(None, ALIASES, ORDER).judge(HARD, 0.5)
    assert judged["slow-small"].good < judged["new"].good < judged["big"].good


def test_the_share_asked_for_is_of_the_best_of_the_models_given(router: Router) -> None:
    quality = Quality(router, ALIASES, ORDER)
    assert quality.judge(HARD, 0.99, among=["slow-small"])["slow-small"].will_do
    assert not quality.judge(HARD, 0.99, among=["slow-small", "big"])["slow-small"].will_do
    assert quality.best(["fast-small", "slow-small"]) == "fast-small"


def test_a_promise_holds_where_its_best_model_is_the_best_there_is(router: Router) -> None:
    quality = Quality(router, ALIASES, ORDER)
    promise = quality.promise(0.9, ["slow-small", "big"])
    assert promise is not None and promise.best == "big"
    assert quality.promise(0.9, ["slow-small", "fast-small"]) is None
    assert quality.promise(0.99, ["slow-small", "big"]) is None
    gone = Quality(router, {"slow-small": "small"}, ["slow-small"])
    assert gone.promise(0.9, ["slow-small"]) is None


def test_every_tier_of_the_best_model_will_do_and_a_watched_slack_replaces_the_promises(
    router: Router,
) -> None:
    aliases = {"small": "small", "slow": "large", "fast": "large"}
    quality = Quality(router, aliases, ["small", "slow", "fast"])
    strict = quality.judge(EASY, 0.9, slack=-1.0)
    assert [each.will_do for each in strict.values()] == [False, True, True]
    assert all(each.will_do for each in quality.judge(HARD, 0.9, slack=1.0).values())
    assert quality.promise(0.9, ["small", "fast"]) is not None
    assert quality.router is not None and quality.router.models == ("small", "slow", "fast")


def test_without_a_promise_the_records_learnt_from_say_how_much_is_left_to_the_cheap_model() -> None:
    quality = Quality(Router(train(questions(600))), ALIASES, ORDER)
    among = ["slow-small", "fast-small", "big"]
    slacks = [quality.slack(asked, among) for asked in (0.7, 0.9, 0.99)]
    assert None not in slacks and slacks == sorted(slacks, reverse=True)  # type: ignore[type-var]
    assert quality.slack(0.9, ["big", "new"]) is None
    assert quality.slack(0.9, ["slow-small", "fast-small"]) is None
