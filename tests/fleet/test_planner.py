"""The planner: how many workers keep limits, checked against the simulator and against itself."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.fleet.balance import Policy
from headrace.fleet.forecast import PERCENTILE, Pools, forecast, plain
from headrace.fleet.modelled_worker import WorkerModel
from headrace.fleet.planner import Limits, Tier, plan, splits
from headrace.fleet.shape import FleetShape
from headrace.fleet.step_time import StepTime
from headrace.fleet.traffic import Arrival, Lengths, Load, Traffic
from headrace.simulate.load import prepared, synthetic
from headrace.simulate.report import tpot, ttft
from headrace.simulate.run import FleetModel, simulate

SPEED = StepTime(base=0.01, row=0.001, context=1e-7)
WORKER = WorkerModel(SPEED)
TIER = Tier("cpu", WORKER)


def load(rate: float, prompt: int = 500, cached: int = 0, output: int = 80, seed: int = 3) -> Load:
    random = Random(seed)

    def length(mean: int) -> int:
        return max(1, round(random.expovariate(1 / mean)))

    lengths = [Lengths(cached + length(prompt), cached, length(output)) for _ in range(300)]
    return Load(rate, [random.expovariate(rate) for _ in range(300)], lengths)


def simulated(rate: float, pools: Pools, requests: int = 300, unit: int = 2) -> tuple[float, float]:
    """TTFT and TPOT, at the planner's percentile, by the simulator that drives the real scheduler."""
    model = FleetModel(SPEED, FleetShape(*pools), Policy.PREDICTED_TTFT, 100_000 // unit, 256, 64, unit)
    served = simulate(prepared(synthetic(rate, requests, 500, 80, seed=1), 1.0, unit), model).served
    tpots = [value for one in served if (value := tpot(one)) is not None]
    return at_percentile([ttft(one) for one in served]), at_percentile(tpots)


def at_percentile(values: list[float]) -> float:
    return sorted(values)[math.ceil(PERCENTILE * len(values)) - 1]


def observed(rate: float) -> Load:
    """What the fleet would have seen of the simulator's load."""
    traffic = Traffic(window=1e9)
    for number, one in enumerate(synthetic(rate, 400, 500, 80, seed=1)):
        traffic.arrived(str(number), one.input_len, one.arrival)
        traffic.ended(str(number), 0, one.output_len, one.arrival)
    found = traffic.load(one.arrival)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("rate", "limits", "workers"),
    [
        (0.5, Limits(tpot=0.05), 2),
        (2.0, Limits(ttft=2.5), 3),
        (2.0, Limits(ttft=2.5, tpot=0.05), 4),
        (4.0, Limits(ttft=2.5, tpot=0.05), 6),
    ],
)
def test_the_simulator_finds_the_limits_kept_and_by_one_worker_fewer_exceeded(
    rate: float, limits: Limits, workers: int
) -> None:
    told = plan(observed(rate), [TIER], limits, may_split=False)
    assert told.meets and told.pools == Pools(both=workers)
    assert keeps(limits, *simulated(rate, Pools(workers)))
    assert not keeps(limits, *simulated(rate, Pools(workers - 1)))


def test_the_simulator_agrees_on_pools_for_prompts_and_answers_too() -> None:
    limits = Limits(ttft=2.5, tpot=0.03)
    told = plan(observed(4.0), [TIER], limits)
    assert told.meets and told.pools == Pools(0, 4, 2)
    assert keeps(limits, *simulated(4.0, told.pools))
    for fewer in (Pools(0, 3, 2), Pools(0, 4, 1)):
        assert not keeps(limits, *simulated(4.0, fewer))


def keeps(limits: Limits, ttft: float, tpot: float) -> bool:
    return (limits.ttft is None or ttft <= limits.ttft) and (limits.tpot is None or tpot <= limits.tpot)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_forecast_is_what_the_simulator_says(workers: int) -> None:
    rate = 0.6 * workers
    trace = list(synthetic(rate, 200, 500, 80, seed=2))
    model = FleetModel(SPEED, FleetShape(workers), Policy.PREDICTED_TTFT, 100_000, 256, 64, 1)
    served = simulate(prepared(trace, 1.0, 1), model).served
    told = plain([Arrival(o.arrival, Lengths(o.input_len, 0, o.output_len)) for o in trace], WORKER, workers)
    assert told.ttft == pytest.approx(at_percentile([ttft(one) for one in served]), rel=0.1)
    tpots = [value for one in served if (value := tpot(one)) is not None]
    assert told.tpot == pytest.approx(at_percentile(tpots), rel=0.25)


LOADS = st.builds(
    load,
    rate=st.floats(0.1, 6),
    prompt=st.integers(20, 900),
    cached=st.sampled_from([0, 500]),
    output=st.integers(1, 150),
    seed=st.integers(0, 5),
)
LIMITS = st.builds(
    Limits, ttft=st.none() | st.floats(0.2, 10), tpot=st.none() | st.sampled_from([0.0125, 0.02, 0.05, 0.2])
)


@settings(max_examples=10, deadline=None)
@given(LOADS, LIMITS, st.floats(0.3, 1.0))
def test_tighter_limits_are_never_cheaper_to_keep(of: Load, limits: Limits, part: float) -> None:
    tighter = Limits(*(None if limit is None else part * limit for limit in limits))
    told, other = (plan(of, [TIER], asked, may_split=False) for asked in (limits, tighter))
    assert told.meets == (limits.strain(told.forecast) <= 1)
    if other.meets:
        assert told.meets and told.cost <= other.cost
    assert told.pools.workers >= 1 and not told.pools.prefill


@settings(max_examples=4, deadline=None)
@given(LOADS, LIMITS, st.floats(1.1, 4))
def test_the_cheaper_of_two_tiers_is_taken_unless_only_the_faster_one_keeps_the_limits(
    of: Load, limits: Limits, price: float
) -> None:
    fast = StepTime(base=SPEED.base / 3, row=SPEED.row / 3, context=SPEED.context / 3)
    tiers = [TIER, Tier("fast", WorkerModel(fast), cost=price)]
    told = plan(of, tiers, limits)
    alone = [plan(of, [tier], limits) for tier in tiers]
    if told.meets:
        assert all(told.cost <= one.cost for one in alone if one.meets)
    else:
        assert not any(one.meets for one in alone)
    assert any("requests/s" in reason for reason in told.reasons)


def test_prefill_is_split_from_decode_where_that_is_cheaper() -> None:
    # Long prompts would hold up the streams of workers that do both.
    told = plan(load(2.0), [TIER], Limits(ttft=2.5, tpot=0.02))
    both = plan(load(2.0), [TIER], Limits(ttft=2.5, tpot=0.02), may_split=False)
    assert told.meets and told.pools.prefill and told.pools.decode and told.cost < both.cost
    assert any(f"{both.pools.both} cpu, at a cost of" in reason for reason in told.reasons)


def test_limits_that_nothing_keeps_are_told() -> None:
    told = plan(load(1.0), [TIER], Limits(tpot=0.001))
    assert not told.meets and any("no number of workers" in reason for reason in told.reasons)


def test_fewer_prompt_tokens_to_compute_need_fewer_workers() -> None:
    limits = Limits(ttft=2.5, tpot=0.05)
    fresh = plan(load(3.0, prompt=600), [TIER], limits, may_split=False)
    hit = Load(
        3.0, load(3.0).gaps, [Lengths(p, int(0.8 * p), o) for p, _, o in load(3.0, prompt=600).lengths]
    )
    assert plan(hit, [TIER], limits, may_split=False).cost < fresh.cost


def test_every_way_to_divide_workers_is_told() -> None:
    found = dict(splits(load(1.0), WORKER, 4))
    assert list(found) == [Pools(4), Pools(0, 1, 3), Pools(0, 2, 2), Pools(0, 3, 1)]
    assert all(told.ttft > 0 for told in found.values())
    assert forecast(list(load(1.0).drawn(600)), WORKER, Pools(0, 1, 3)) == found[0, 1, 3]


def test_traffic_forgets_what_is_older_than_its_window() -> None:
    traffic = Traffic(window=100.0)
    for second in range(200):
        traffic.arrived(str(second), 100 + second, float(second))
        traffic.ended(str(second), 60, 10, second + 0.5)
    found = traffic.load(200.0)
    assert found is not None
    assert found.rate == pytest.approx(1.0, rel=0.02)
    assert min(lengths.prompt for lengths in found.lengths) == 200
    assert traffic.load(1000.0) is None


def test_traffic_that_has_not_ended_says_how_often_but_not_how_long() -> None:
    traffic = Traffic()
    for number in range(4):
        traffic.arrived(str(number), 10, float(number))
    assert traffic.load(4.0) is None
    traffic.ended("0", 30, 5, 4.0)
    traffic.ended("never came", 0, 5, 4.0)
    found = traffic.load(4.0)
    assert found is not None and found.rate == 1.0
    assert list(found.lengths) == [Lengths(10, 9, 5)]  # a prompt's last token is computed in any case
