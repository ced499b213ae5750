"""A promise of quality, watched while requests come: kept, tested, given up and taken up again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.routing import artefact
from headrace.routing.risk import ALWAYS_BEST, chosen, greatest_slack
from headrace.routing.router import Router
from headrace.routing.watch import EAGER, Watch
from headrace.routing.watched import NOT_PROMISED, fingerprint
from routing.traffic import COSTS, MODELS, Floats, serve, traffic, will_do

QUALITY = 0.95


def a_watch(slack: float | None = None, quality: float = QUALITY, **options: Any) -> Watch:
    return Watch(MODELS, "large", quality, slack=slack, **options)


def promised(slack: float) -> Watch:
    return a_watch(slack, shadow=0.05)


def test_while_traffic_stays_as_it_is_quality_is_kept_at_about_the_cost_found_offline() -> None:
    good, scores = traffic(20_000, 100)
    offline = []
    for seed in range(20):
        records = slice(seed * 1000, (seed + 1) * 1000)
        slack = greatest_slack(good[records], scores[records], 1, QUALITY, 0.05, 1000)
        offline.append((chosen(good, 1, slack) == 1).mean())
    online, alarms = [], 0
    for seed in range(6):
        watch = a_watch(shadow=0.1)
        served = serve(watch, *traffic(40_000, seed), seed)
        assert served.since(20_000).quality >= QUALITY
        online.append(served.since(20_000).strong)
        alarms += watch.state().alarms
    assert alarms == 0
    assert np.mean(online) <= 1.15 * np.mean(offline)


def test_a_slack_that_breaks_the_promise_is_hardly_ever_set() -> None:
    all_good, all_scores = traffic(50_000, 99)
    wanted, short = QUALITY * all_scores[:, 1].mean(), 0
    for seed in range(30):
        watch = a_watch()
        for good, scores in zip(*traffic(2000, seed), strict=True):
            watch.scored(good, scores, NOT_PROMISED)
        assert watch.slack is not None
        got = all_scores[np.arange(50_000), chosen(all_good, 1, watch.slack)].mean()
        short += bool(got < wanted)
    assert short <= 2


@pytest.mark.parametrize("seed", range(4))
def test_a_cheap_model_that_gets_worse_is_noticed_and_quality_restored_and_its_recovery_too(
    seed: int,
) -> None:
    watch = promised(0.15)
    before = serve(watch, *traffic(20_000, seed), seed)
    assert before.quality >= QUALITY and not before.alarms and before.strong < 0.6
    worse = serve(watch, *traffic(20_000, seed + 10, worse=0.4), seed)
    (alarm,) = worse.alarms
    assert alarm < 3000  # about 100 samples
    assert worse.since(alarm + 1).quality >= QUALITY
    assert worse.since(alarm + 1).strong > 0.9
    better = serve(watch, *traffic(40_000, seed + 20), seed)
    assert better.quality >= QUALITY
    assert better.since(20_000).strong < 0.75
    assert not watch.state().drifted


def test_at_an_alarm_the_best_model_answers_everything_whatever_quality_is_asked_for() -> None:
    watch = promised(0.15)
    good, scores = np.array([0.9, 0.8]), np.array([0.0, 1.0])
    assert will_do(watch, good) == [True, True]
    assert [watch.slack_for(quality, 0.3) for quality in (0.8, QUALITY, 0.99)] == [0.3, 0.15, 0.3]
    while not watch.state().alarms:
        assert not watch.state().drifted
        watch.scored(good, scores, 0)
    assert watch.state().scored < 40
    assert (watch.slack, watch.state().drifted) == (ALWAYS_BEST, True)
    assert will_do(watch, good) == [False, True]
    for quality in (0.8, QUALITY, 0.99):
        assert watch.slack_for(quality, 0.3) == ALWAYS_BEST


def test_a_calibration_that_shifts_moves_no_threshold_but_more_is_scored() -> None:
    watch = promised(0.15)
    for good, scores in zip(*traffic(1500, 0), strict=True):
        watch.scored(good, scores, 0 if scores[0] >= scores[1] else 1)
    assert watch.sampling == 0.05
    for good, scores in zip(*traffic(300, 1, worse=0.5), strict=True):
        before = watch.state()
        watch.scored(good, scores, 1)
        if watch.state().shifts:
            break
    state = watch.state()
    assert (state.alarms, state.shifts, state.slack) == (0, 1, before.slack)
    assert state.sampling == EAGER * 0.05


def test_users_scores_that_change_have_more_scored_and_move_no_threshold() -> None:
    watch = promised(0.15)
    for good, scores in zip(*traffic(1000, 0), strict=True):
        watch.scored(good, scores, 1)
    slack, good = watch.slack, np.array([0.8, 0.9])
    for _ in range(400):
        watch.feedback(good, 0, 0.7)
    assert watch.sampling == 0.05
    for _ in range(100):
        watch.feedback(good, 0, 0.0)
    state = watch.state()
    assert (state.suspected, state.sampling) == (True, EAGER * 0.05)
    assert (state.slack, state.alarms, state.feedback) == (slack, 0, 500)
    assert state.received == pytest.approx(400 * 0.7 / (500 * 0.9))


def test_shadow_calls_stay_within_their_share_of_what_is_spent() -> None:
    for share in (0.0, 0.01, 0.05):
        watch = a_watch(shadow=0.5, exploration=share)
        serve(watch, *traffic(3000, 0), 0)
        state = watch.state()
        assert state.spent <= share * state.earned + (max(COSTS) if state.scored == 1 else 0)
        assert state.spent >= 0.9 * share * state.earned - max(COSTS)


def test_what_a_request_costs_in_the_shadow_does_not_decide_whether_it_is_scored() -> None:
    watch = promised(0.15)
    served = serve(watch, *traffic(20_000, 0), 0)
    share = watch.state().share
    assert watch.state().spent > 0.04 * watch.state().earned  # it is short of money all the time
    assert share == pytest.approx(served.since(10_000).strong, abs=0.05)


def test_what_costs_nothing_is_scored_at_the_share_asked_for() -> None:
    watch = a_watch(shadow=0.02, exploration=0.0)
    served = sum(watch.wants_sample(draw) for draw in np.linspace(0, 1, 1000, endpoint=False))
    assert served == 1000 * 0.02 * EAGER
    assert not any(a_watch(shadow=0.0).wants_sample(draw) for draw in (0.0, 0.5))


def test_models_are_asked_that_some_slack_would_choose() -> None:
    watch = Watch(("tiny", "small", "medium", "large"), "large", QUALITY)
    assert watch.asks(np.array([0.2, 0.5, 0.4, 0.9]), 3) == [0, 1]
    assert watch.asks(np.array([0.2, 0.5, 0.6, 0.9]), 1) == [0, 2, 3]
    assert watch.asks(np.array([0.9, 0.5, 0.6, 0.9]), 0) == [3]


def test_the_promise_is_about_the_best_model_even_where_another_costs_more() -> None:
    watch = Watch(("tiny", "best", "dear"), "best", QUALITY)
    good = np.array([0.69, 0.7, 0.6])
    assert will_do(watch, good) == [True, True, False]
    assert watch.asks(good, 2) == [0, 1]
    watch.scored(good, np.array([1.0, 0.0, np.nan]), 0)
    watch.scored(good, np.array([0.5, 1.0, 0.25]), 2)
    state = watch.state()
    assert state.samples == 2 and state.realised is not None and state.realised.quality == 1.25


def test_records_with_holes_count_for_what_they_show() -> None:
    watch = a_watch(window=200)
    good = np.array([0.7, 0.7])
    watch.scored(good, np.array([1.0, np.nan]), 0)
    assert watch.state().samples == 0
    for _ in range(400):
        watch.scored(good, np.array([np.nan, 1.0]), 1)
    state = watch.state()
    assert (state.samples, state.slack, state.scored) == (200, None, 401)
    assert state.realised is not None and state.realised.quality == 1.0
    for _ in range(200):
        watch.scored(good, np.array([1.0, 1.0]), 1)
    assert watch.slack is not None and watch.slack >= 0


def test_choices_that_the_promise_did_not_make_are_no_evidence_against_it() -> None:
    watch = promised(0.15)
    for _ in range(200):
        watch.scored(np.array([0.1, 0.9]), np.array([0.0, 1.0]), NOT_PROMISED)
    state = watch.state()
    assert (state.alarms, state.realised, state.share) == (0, None, 1.0)


def _answers(watch: Watch, good: Floats, scores: Floats) -> list[object]:
    for number in range(len(good)):
        watch.scored(good[number], scores[number], 1)
    return [watch.state(), will_do(watch, good[0])]


def test_what_is_saved_is_taken_up_as_if_nothing_had_been() -> None:
    watch = promised(0.1)
    serve(watch, *traffic(5000, 0), 0)
    watch.feedback(np.array([0.5, 0.6]), 0, 1.0)
    again = promised(0.1)
    assert again.load(json.loads(json.dumps(watch.save())))
    assert again.state() == watch.state()
    more = traffic(1000, 5)
    assert _answers(again, *more) == _answers(watch, *more)


def test_what_was_known_of_something_else_is_not_taken_up_but_what_was_spent_is() -> None:
    watch = promised(0.1)
    serve(watch, *traffic(2000, 0), 0)
    saved = json.loads(json.dumps(watch.save()))
    others = [
        promised(0.2),
        a_watch(0.1, learnt="other"),
        a_watch(0.1, quality=0.9),
        Watch(("a", "large"), "large", QUALITY, slack=0.1),
    ]
    for other in others:
        assert not other.load(saved)
        state = other.state()
        assert (state.samples, state.spent, state.resets) == (0, watch.state().spent, 0)
    for garbage in (None, {}, {"about": 3}, {**saved, "records": [{"good": "x"}]}):
        assert not promised(0.1).load(garbage)


def test_a_fingerprint_tells_routers_apart_that_estimate_differently() -> None:
    router = artefact.first_day(MODELS)
    other = Router(replace(router.estimator, duals=router.estimator.duals * 2))
    assert fingerprint(router) == fingerprint(artefact.first_day(MODELS)) != fingerprint(other)


def three(count: int, seed: int) -> tuple[Floats, Floats]:
    """As `traffic`, of three models, with prompts from easy to hard for all of them."""
    draw = np.random.default_rng(seed)
    true = 1 - draw.random(count)[:, None] * [0.9, 0.5, 0.2]
    good = np.clip(true + draw.normal(0, 0.07, (count, 3)), 0, 1)
    return good, (draw.random((count, 3)) < true).astype(np.float64)


def test_of_three_models_the_middle_one_has_its_share_and_only_those_asked_are_known() -> None:
    watch = Watch(("tiny", "small", "large"), "large", 0.9, shadow=0.1, exploration=0.1)
    draw, models, scores = np.random.default_rng(1), [], three(30_000, 0)[1]
    for good, score in zip(three(30_000, 0)[0], scores, strict=True):
        model = will_do(watch, good).index(True)
        models.append(model)
        watch.earned((0.1, 0.3, 1.0)[model])
        if watch.wants_sample(float(draw.random())):
            asked = watch.asks(good, model)
            watch.spent(sum((0.1, 0.3, 1.0)[each] for each in asked))
            known = [each in asked or each == model for each in range(3)]
            watch.scored(good, np.where(known, score, np.nan), model)
    late = slice(15_000, None)
    got = scores[np.arange(30_000), models][late]
    shares = np.bincount(models[late], minlength=3) / 15_000
    assert got.mean() >= 0.9 * scores[late, 2].mean()
    assert shares.min() > 0.15 and not watch.state().alarms


def test_a_slack_is_lowered_by_the_evidence_that_raised_it() -> None:
    watch = a_watch(window=1000, horizon=10**6)
    good = np.array([0.7, 0.9])
    for _ in range(100):
        watch.scored(good, np.array([1.0, 1.0]), NOT_PROMISED)
    assert watch.slack is not None and watch.slack > 0.2
    for _ in range(50):
        watch.scored(good, np.array([0.0, 1.0]), NOT_PROMISED)
    assert watch.slack <= 0.2


def test_old_evidence_is_forgotten_and_its_slack_stays_until_there_is_new() -> None:
    watch = a_watch(window=100)
    for good, scores in zip(*traffic(800, 0), strict=True):
        before = watch.slack
        watch.scored(good, scores, NOT_PROMISED)
    assert (watch.save()["evidence"]["count"], watch.sampling) == (0, 0.02)
    assert watch.slack == before is not None
