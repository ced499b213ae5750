"""Which slacks records support, asked again and again while they come."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np

from headrace.routing.risk import ALWAYS_BEST, chosen, greatest_slack
from headrace.routing.sequential import Sequential, Shown
from routing.traffic import traffic

QUALITY, DELTA = 0.95, 0.05


def evidence(count: int, seed: int, worse: float = 0.0) -> Sequential:
    seen = Sequential(1, QUALITY, DELTA, 1000)
    for good, scores in zip(*traffic(count, seed, worse), strict=True):
        seen.saw(good, scores)
    return seen


def test_asked_after_every_record_a_slack_that_breaks_the_promise_is_hardly_ever_shown() -> None:
    all_good, all_scores = traffic(50_000, 99)
    greatest = max(
        slack
        for slack in np.linspace(0, 0.5, 101)
        if all_scores[np.arange(50_000), chosen(all_good, 1, slack)].mean()
        >= QUALITY * all_scores[:, 1].mean()
    )
    wrong = 0
    for seed in range(40):
        seen = Sequential(1, QUALITY, DELTA, 1000)
        shown = []
        for good, scores in zip(*traffic(1500, seed), strict=True):
            seen.saw(good, scores)
            shown.append(seen.slack(10**9))
        wrong += max(shown) > greatest
    assert wrong <= 2


def test_it_leaves_as_much_to_the_cheap_model_as_one_look_at_all_records_would() -> None:
    good, _ = traffic(20_000, 99)

    def strong(slack: float) -> float:
        return float((chosen(good, 1, slack) == 1).mean())

    once = [greatest_slack(*traffic(1000, seed), 1, QUALITY, DELTA, 1000) for seed in range(20)]
    online = [evidence(1000, seed).slack(1000) for seed in range(20)]
    assert np.mean([strong(slack) for slack in online]) <= 1.1 * np.mean([strong(slack) for slack in once])


def test_nothing_is_shown_by_no_records_or_by_a_cheap_model_that_is_useless() -> None:
    assert evidence(0, 0).slack(1000) == ALWAYS_BEST
    assert evidence(2000, 0, worse=1.0).slack(1000) < -0.05


def test_evidence_goes_on_from_where_it_was_saved() -> None:
    one = evidence(500, 0)
    other = Sequential(1, QUALITY, DELTA, 1000, Shown(**json.loads(json.dumps(asdict(one.shown)))))
    for good, scores in zip(*traffic(500, 1), strict=True):
        one.saw(good, scores)
        other.saw(good, scores)
    assert other.shown == one.shown and other.count == 1000
