"""The order into which policies put models, and what a client is told where none can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, RequestError
from headrace.routing.candidate import (
    NOT_ALLOWED,
    Candidate,
    circuit_open,
    lacks,
    over_budget,
    rate_limited,
    too_short,
)
from headrace.routing.policies import BestInBudget, Cascade, Cheapest, policy_of
from headrace.routing.policy import NoModelError, Plan, Policy
from headrace.routing.tables import PolicyTable
from headrace.routing.wants import Wants
from routing.candidates import candidate

SMALL = candidate("small", good=0.6, cost=0.001, first_token=0.1)
MIDDLE = candidate("middle", good=0.8, cost=0.004, first_token=0.2)
LARGE = candidate("large", good=0.9, cost=0.02, first_token=0.4)
FLEET = (SMALL, MIDDLE, LARGE)


def cheapest(wants: Wants, *candidates: Candidate, table: PolicyTable | None = None) -> Plan:
    return Cheapest(table or PolicyTable()).plan(wants, candidates)


def test_the_cheapest_model_that_will_do_is_chosen_and_the_others_follow() -> None:
    poor = candidate("poor", good=0.2, cost=0.0001, will_do=False)
    plan = cheapest(Wants(quality=0.9), LARGE, MIDDLE, poor)
    assert plan.order == ("middle", "large", "poor")
    assert plan.why == "cheapest of 2 with quality 0.9"
    assert (plan.hedge_after, plan.accept, plan.steps) == (None, None, 1)


def test_a_model_that_is_too_slow_gives_way_to_a_dearer_one() -> None:
    flooded = candidate("flooded", cost=0.001, first_token=2.0)
    plan = cheapest(Wants(quality=0.9, first_token=0.5), flooded, LARGE)
    assert plan.order == ("large", "flooded")
    assert plan.why == "cheapest of 1 with quality 0.9, first token 500 ms"
    assert cheapest(Wants(quality=0.9), flooded, LARGE).order[0] == "flooded"
    dripping = candidate("dripping", cost=0.001, per_token=0.2)
    assert cheapest(Wants(tokens_per_second=10), dripping, LARGE).order[0] == "large"


def test_a_limit_is_held_against_the_late_first_tokens_where_they_are_known() -> None:
    shaky = Candidate(
        "shaky", "local", 0.8, 0.0, True, 100, 50.0, 0.001, 0.002, 0.2, 0.01, first_token_by=0.9
    )
    assert cheapest(Wants(first_token=0.5), shaky, LARGE).order[0] == "large"


def test_quality_goes_before_latency_and_latency_before_cost() -> None:
    quick_but_poor = candidate("poor", will_do=False, first_token=0.01, cost=0.0)
    slow = candidate("slow", first_token=3.0, cost=0.001)
    slower = candidate("slower", first_token=9.0, cost=0.0)
    plan = cheapest(Wants(quality=0.9, first_token=1.0), quick_but_poor, slower, slow)
    assert plan.order == ("slow", "slower", "poor")
    assert plan.why == "soonest of 2 with quality 0.9; 3.0 times too slow for what was asked"


def test_where_no_usable_model_is_good_enough_the_best_one_answers_and_says_so() -> None:
    down = candidate("best", good=0.95, refused=circuit_open(12))
    others = [candidate(name, good=good, will_do=False) for name, good in (("a", 0.3), ("b", 0.7))]
    plan = cheapest(Wants(quality=0.9), down, *others)
    assert plan.order == ("b", "a")
    assert plan.why == "best chance of 2; no usable model meets the quality"


def test_a_last_resort_comes_last_and_alone_where_nothing_else_is_left() -> None:
    tripped = candidate("tripped", cost=0.0, refused=circuit_open(12), last=True, wait=12)
    assert cheapest(Wants(), tripped, SMALL).order == ("small", "tripped")
    plan = cheapest(Wants(), tripped, candidate("full", refused=rate_limited(3)))
    assert plan.order == ("tripped",)
    assert plan.why == "last resort (circuit open for 12 s); nothing else can answer"


def test_a_budget_is_named_as_the_reason_where_it_is_one() -> None:
    over, free = over_budget("per_day", "0.00", "0.10"), candidate("free", good=0.3, will_do=False, cost=0.0)
    kept_out = candidate("large", good=0.9, cost=0.04, refused=over)
    assert cheapest(Wants(quality=0.9), free, kept_out).why == (
        "best chance of 1; no usable model meets the quality; large is over the budget"
    )
    best = BestInBudget(PolicyTable(kind="best-in-budget"))
    small = candidate("small", good=0.8, cost=0.01)
    assert best.plan(Wants(), [small, kept_out]).why == "best of 1 with the quality; large is over the budget"
    assert cheapest(Wants(), small, kept_out).why == "cheapest of 1 with the quality"


def test_what_a_request_may_cost_is_never_exceeded() -> None:
    assert cheapest(Wants(cost=0.01), *FLEET).order == ("small", "middle")
    with pytest.raises(NoModelError, match=r"max_cost of 0\.0001 is too low: small, the cheapest, may cost"):
        cheapest(Wants(cost=0.0001), *FLEET)


@pytest.mark.parametrize(
    ("refusals", "status", "code"),
    [
        ([over_budget("per_day", "0.00", "0.10"), too_short(2048)], 402, "budget_exceeded"),
        ([over_budget("per_day", "0.00", "0.10"), rate_limited(2.5)], 429, "rate_limit_exceeded"),
        ([circuit_open(3), lacks("vision")], 503, "model_unavailable"),
        ([too_short(2048), too_short(4096)], 400, "context_length_exceeded"),
        ([lacks("vision"), NOT_ALLOWED], 400, "unsupported_by_models"),
        ([NOT_ALLOWED, NOT_ALLOWED], 404, "model_not_found"),
        (["its worker starts"], 503, "model_unavailable"),
        ([], 404, "model_not_found"),
    ],
)
def test_an_error_says_why_no_model_can_answer(refusals: list[str], status: int, code: str) -> None:
    candidates = [candidate(f"m{at}", refused=refused, wait=at) for at, refused in enumerate(refusals)]
    with pytest.raises(NoModelError) as told:
        cheapest(Wants(), *candidates)
    assert (told.value.status, told.value.code) == (status, code)
    shown = [each for each in candidates if each.refused != NOT_ALLOWED]
    assert all(f"{each.name}: {each.refused}" in str(told.value) for each in shown)
    assert all(each.name not in str(told.value) for each in candidates if each not in shown)


def test_an_error_says_when_the_first_model_can_be_asked_again() -> None:
    with pytest.raises(NoModelError) as told:
        cheapest(Wants(), *(candidate("m", refused=rate_limited(at), wait=at) for at in (7.5, 3.25)))
    assert told.value.wait == 3.25
    assert "rate limit for 4 s" in str(told.value)


def test_a_slow_first_token_is_hedged_where_both_can_be_paid() -> None:
    table = PolicyTable(hedge=3)
    assert cheapest(Wants(), *FLEET, table=table).hedge_after == pytest.approx(0.3)
    assert cheapest(Wants(cost=0.009), SMALL, MIDDLE, table=table).hedge_after is None
    assert cheapest(Wants(), SMALL, table=table).hedge_after is None
    tripped = candidate("tripped", refused=circuit_open(1), last=True)
    assert cheapest(Wants(), SMALL, tripped, table=table).hedge_after is None


def test_best_in_budget_takes_the_best_chance_that_can_be_paid() -> None:
    policy = BestInBudget(PolicyTable(kind="best-in-budget"))
    assert policy.plan(Wants(quality=0.5), FLEET).order == ("large", "middle", "small")
    assert policy.plan(Wants(quality=0.5, cost=0.01), FLEET).order == ("middle", "small")
    assert policy.plan(Wants(quality=0.5, first_token=0.3), FLEET).order == ("middle", "small", "large")
    assert policy.plan(Wants(quality=0.5), FLEET).why == "best of 3 with quality 0.5"


def cascade(wants: Wants, *candidates: Candidate, accept: float | None = None) -> Plan:
    return Cascade(PolicyTable(kind="cascade", accept=accept)).plan(wants, candidates)


def test_a_cascade_goes_up_from_the_cheap_to_the_best() -> None:
    plan = cascade(Wants(quality=0.9), *FLEET)
    assert plan.order == ("small", "middle", "large")
    assert plan.steps == 3
    assert plan.accept == pytest.approx(0.9 * 0.9)
    assert plan.why == "cascade of 3: small first, accepted from a chance of 0.81 on"
    assert cascade(Wants(quality=0.9), *FLEET, accept=0.7).accept == 0.7


def test_a_cascade_skips_what_is_not_worth_trying() -> None:
    hopeless = candidate("hopeless", good=0.04, cost=0.001)
    dearer = candidate("dearer", good=0.5, cost=0.02)
    down = candidate("down", good=0.99, cost=0.1, refused=circuit_open(9), last=True)
    plan = cascade(Wants(quality=0.9), hopeless, dearer, MIDDLE, LARGE, down)
    assert plan.order[: plan.steps] == ("middle", "large")
    assert set(plan.order[plan.steps :]) == {"hopeless", "dearer", "down"}
    assert plan.order[-1] == "down"


def test_a_cascade_that_would_answer_too_late_or_cost_too_much_is_shortened() -> None:
    assert cascade(Wants(cost=0.05), *FLEET).order[:2] == ("small", "middle")
    assert cascade(Wants(cost=0.049), *FLEET).order == ("middle", "large", "small")
    assert cascade(Wants(cost=0.041), *FLEET).accept is None
    quick = cascade(Wants(first_token=1.2), *FLEET)
    assert (quick.order[: quick.steps], quick.accept is None) == (("middle", "large"), False)
    assert cascade(Wants(first_token=0.15), *FLEET) == cheapest(Wants(first_token=0.15), *FLEET)


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.just("x"),
        good=st.sampled_from([0.1, 0.5, 0.8, 0.9]),
        will_do=st.booleans(),
        cost=st.sampled_from([0.0, 0.001, 0.02]),
        most_cost=st.sampled_from([0.02, 0.05, 0.2]),
        first_token=st.sampled_from([0.05, 0.5, 5.0]),
        per_token=st.sampled_from([0.001, 0.1]),
        refused=st.sampled_from(["", "", rate_limited(3), over_budget("per_day", "0.00", "0.10")]),
        last=st.booleans(),
    ),
    max_size=6,
)
WANTS = st.builds(
    Wants,
    quality=st.sampled_from([0.5, 0.95, None]),
    first_token=st.sampled_from([None, 0.3]),
    tokens_per_second=st.sampled_from([None, 20.0]),
    cost=st.sampled_from([None, 0.01, 0.06, 0.3]),
)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(["cheapest", "best-in-budget", "cascade"]), WANTS, CANDIDATES)
def test_every_plan_keeps_to_what_is_usable_and_affordable(
    kind: str, wants: Wants, made: list[Candidate]
) -> None:
    named = {f"m{at}": replace(each, name=f"m{at}") for at, each in enumerate(made)}
    policy = policy_of(PolicyTable(kind=kind, hedge=2.0))
    usable = {
        name
        for name, each in named.items()
        if (not each.refused or each.last) and (wants.cost is None or each.most_cost <= wants.cost)
    }
    try:
        plan = policy.plan(wants, list(named.values()))
    except RequestError as error:
        assert not usable
        assert error.status in (400, 402, 404, 429, 503)
        return
    assert set(plan.order) == usable
    assert len(plan.order) == len(usable)
    assert 1 <= plan.steps <= len(plan.order)
    assert (plan.accept is None) == (plan.steps == 1)
    assert plan.why.isascii() and len(plan.why) < 120
    ready = [not named[name].refused for name in plan.order]
    assert ready == sorted(ready, reverse=True)
    if wants.cost is not None:
        at_once = plan.steps if plan.hedge_after is None else 2
        assert sum(named[name].most_cost for name in plan.order[:at_once]) <= wants.cost
    if plan.steps == 1 and any(named[name].will_do and not named[name].refused for name in plan.order):
        assert named[plan.order[0]].will_do


class Loudest(Policy):
    """A user's own: what its options name goes first."""

    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        first = str(self.table.options["first"])
        return Plan((first, *(each.name for each in candidates if each.name != first)), "as told")


class Broken(Loudest):
    def __init__(self, table: PolicyTable):
        raise KeyError("first")


class Unfinished(Policy):
    pass


def test_a_user_can_write_a_policy() -> None:
    policy = policy_of(PolicyTable(kind=f"{__name__}:Loudest", options={"first": "large"}))
    assert policy.plan(Wants(), FLEET).order == ("large", "small", "middle")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("no.such.module:Policy", "cannot be imported: ModuleNotFoundError: No module named 'no'"),
        (f"{__name__}:Missing", "has no Missing"),
        (f"{__name__}:Candidate", "must be a class that derives from headrace.routing.policy.Policy"),
        (f"{__name__}:FLEET", "must be a class that derives from"),
        (f"{__name__}:Unfinished", "lacks plan"),
        (f"{__name__}:Broken", "cannot be made: KeyError: 'first'"),
    ],
)
def test_what_is_no_policy_is_refused(kind: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        policy_of(PolicyTable(kind=kind))
