"""A day's budget that lasts the day: better models as far as the pace allows, and no refusal for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.routing.budget import NANO, Budgets, OverBudget
from headrace.routing.pace import BURST, DAY_SECONDS, allowance, paced
from headrace.routing.policies import BestInBudget, policy_of
from headrace.routing.policy import Plan
from headrace.routing.pricing import nano
from headrace.routing.store import Store
from headrace.routing.tables import BudgetTable, PolicyTable
from headrace.routing.wants import Wants
from routing.candidates import candidate

POOR = candidate("poor", good=0.3, cost=0.0002, will_do=False)
SMALL = candidate("small", good=0.6, cost=0.001)
MIDDLE = candidate("middle", good=0.8, cost=0.004)
LARGE = candidate("large", good=0.9, cost=0.02, first_token=0.4)
FLEET = {each.name: each for each in (POOR, SMALL, MIDDLE, LARGE)}
MIDNIGHT = 20_000.0 * DAY_SECONDS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "routing.sqlite") as opened:
        yield opened


def plan(room: float, **wants: float) -> Plan:
    policy = BestInBudget(PolicyTable(kind="best-in-budget", pace=True))
    return policy.plan(Wants(quality=0.5, **wants), list(paced(FLEET, nano(room)).values()))


def test_what_may_be_spent_grows_from_a_burst_at_midnight_to_all_of_it() -> None:
    assert allowance(NANO, MIDNIGHT) == BURST * NANO
    assert allowance(NANO, MIDNIGHT + DAY_SECONDS / 2) == pytest.approx(NANO * (1 + BURST) / 2)
    assert allowance(NANO, MIDNIGHT + DAY_SECONDS - 0.001) == pytest.approx(NANO)
    assert allowance(0, MIDNIGHT) == 0


def test_the_best_model_within_the_pace_is_asked_and_without_one_the_cheapest_that_will_do() -> None:
    assert plan(1.0).order == ("large", "middle", "small", "poor")
    assert plan(1.0).why == "best of 3 with quality 0.5"
    assert plan(0.019).order == ("middle", "small", "large", "poor")
    assert plan(0.019).why == "best within the day's pace of 3 with quality 0.5"
    assert plan(-1.0).order == ("small", "middle", "large", "poor")
    assert plan(-1.0).why == "ahead of the day's pace: cheapest of 3 with quality 0.5"


def test_quality_and_latency_go_before_the_pace() -> None:
    assert plan(0.0005).order == ("small", "middle", "large", "poor")
    slow = paced({"slow": candidate("slow", cost=0.0001, first_token=9.0), "large": LARGE}, -1)
    policy = BestInBudget(PolicyTable(kind="best-in-budget", pace=True))
    assert policy.plan(Wants(first_token=0.5), list(slow.values())).order == ("large", "slow")


def test_without_a_budget_of_a_day_everything_is_in_pace(store: Store) -> None:
    budgets = Budgets(BudgetTable(per_request=1.0, keys={"alice": 1.0}), store)
    assert budgets.in_pace("bob", MIDNIGHT) is None
    assert budgets.in_pace("alice", MIDNIGHT) == BURST * NANO
    assert paced(FLEET, None) == FLEET


def test_the_tighter_of_two_budgets_sets_the_pace_and_a_new_day_begins_anew(store: Store) -> None:
    budgets = Budgets(BudgetTable(per_day=10.0, keys={"alice": 1.0}), store)
    budgets.reserve("a", "alice", NANO // 2, MIDNIGHT)
    assert budgets.in_pace("alice", MIDNIGHT) == (BURST - 0.5) * NANO
    assert budgets.in_pace("bob", MIDNIGHT) == (10 * BURST - 0.5) * NANO
    budgets.settle("a", 0)
    assert budgets.in_pace("alice", MIDNIGHT) == BURST * NANO
    budgets.reserve("b", "alice", NANO, MIDNIGHT)
    assert budgets.in_pace("alice", MIDNIGHT + DAY_SECONDS) == BURST * NANO


@dataclass
class Day:
    """What became of the requests of a day: one every minute, for which the best model costs too much."""

    chosen: list[str] = field(default_factory=list)
    refused: int = 0
    most_ahead: float = 0.0
    """The most that was spent above the pace, in billionths."""
    spent: int = 0

    def share(self, name: str, begin: float = 0.0, end: float = 1.0) -> float:
        part = self.chosen[int(begin * len(self.chosen)) : int(end * len(self.chosen))]
        return part.count(name) / len(part)


def a_day(store: Store, budget: float, pace: bool) -> Day:
    policy = policy_of(PolicyTable(kind="best-in-budget", pace=pace))
    budgets, day = Budgets(BudgetTable(per_day=budget), store), Day()
    for minute in range(24 * 60):
        now = MIDNIGHT + 60 * minute
        known = paced(FLEET, budgets.in_pace("alice", now)) if pace else FLEET
        choice = FLEET[policy.plan(Wants(quality=0.5), list(known.values())).order[0]]
        try:
            budgets.reserve(str(minute), "alice", nano(choice.most_cost), now)
        except OverBudget:
            day.refused += 1
            continue
        budgets.settle(str(minute), nano(choice.cost))
        day.chosen.append(choice.name)
        day.spent += nano(choice.cost)
        day.most_ahead = max(day.most_ahead, day.spent - allowance(nano(budget), now))
    return day


def test_a_days_money_lasts_the_day_and_buys_the_better_models_in_every_part_of_it(store: Store) -> None:
    budget = 10.0  # the best model alone would take 28.8
    day = a_day(store, budget, pace=True)
    assert (day.refused, day.most_ahead) == (0, 0)
    assert day.spent >= 0.99 * budget * NANO
    quarters = [day.share("large", begin, begin + 0.25) for begin in (0.0, 0.25, 0.5, 0.75)]
    assert min(quarters) > 0.1 and max(quarters) < 0.4
    assert day.share("large") + day.share("middle") > 0.99


def test_without_pace_the_same_money_is_gone_by_morning(store: Store) -> None:
    day = a_day(store, 10.0, pace=False)
    assert day.share("large") == 1.0 and day.refused > 900


def test_where_even_the_cheapest_is_ahead_of_the_pace_it_answers_until_the_money_is_gone(
    store: Store,
) -> None:
    day = a_day(store, 1.0, pace=True)
    assert day.share("small", 0.5) == 1.0 and day.most_ahead > 0
    assert 0.99 * NANO <= day.spent <= NANO and len(day.chosen) > 900
