"""The simulator: what it says of fleets whose behaviour is known, and its command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.bench.serve.metrics import Limits
from headrace.bench.serve.traces import TracedRequest
from headrace.cli import cli
from headrace.errors import ConfigError
from headrace.fleet.balance import Policy
from headrace.fleet.shape import FleetShape
from headrace.fleet.step_time import StepTime
from headrace.simulate.load import prepared, synthetic
from headrace.simulate.report import report
from headrace.simulate.run import FleetModel, simulate

SPEED = StepTime(base=0.01, row=0.001, context=1e-7)


def fleet(
    policy: Policy = Policy.PREDICTED_TTFT, replicas: int = 4, unit: int = 1, cache_blocks: int = 4000
) -> FleetModel:
    return FleetModel(SPEED, FleetShape(replicas), policy, cache_blocks, 256, 64, unit)


def turns(conversations: int, count: int, gap: float = 5.0) -> list[TracedRequest]:
    """Conversations side by side, each turn two blocks of 512 tokens longer than the one before."""
    requests = []
    for turn in range(1, 1 + count):
        for talk in range(conversations):
            blocks = tuple(talk * 1000 + block for block in range(2 * turn))
            arrival = turn * gap * conversations + talk * gap
            requests.append(TracedRequest(arrival, 1024 * turn, 20, blocks))
    return requests


def test_an_idle_replica_takes_what_its_steps_take():
    (served,) = simulate(prepared([TracedRequest(0.0, 1000, 11)], 1.0, 1), fleet(replicas=1)).served
    prefill = 4 * 0.01 + 1000 * 0.001 + 1000 * 1001 / 2 * 1e-7
    assert served.first == pytest.approx(prefill, rel=1e-3)
    assert served.last - served.first == pytest.approx(10 * (0.011 + 1005.5 * 1e-7), rel=1e-3)


def test_workers_of_one_host_slow_each_other_down():
    alone = TracedRequest(0.0, 1000, 1)
    two = [alone, TracedRequest(0.0, 2000, 1)]
    speed = StepTime(base=0.01, row=0.001, slowdown=(1.0, 2.0))
    (first,) = simulate(prepared([alone], 1.0, 1), replace(fleet(replicas=2), step_time=speed)).served
    shorter, longer = simulate(prepared(two, 1.0, 1), replace(fleet(replicas=2), step_time=speed)).served
    assert shorter.replica != longer.replica
    assert shorter.first == pytest.approx(2 * first.first)
    assert longer.first == pytest.approx(1.04 + 2.08)  # what both compute, one after the other
    assert speed.slower(4) == 4  # twice as many as were measured take twice as long


def split(prefill: int, decode: int, transfer_seconds: float = 0.0) -> FleetModel:
    return replace(fleet(), shape=FleetShape(0, prefill, decode), transfer_seconds=transfer_seconds)


def test_a_long_prompt_is_computed_by_one_replica_and_answered_by_another():
    at_once, slowly = (
        simulate(prepared([TracedRequest(0.0, 1000, 11)], 1.0, 1), split(1, 1, seconds)).served[0]
        for seconds in (0.0, 1e-4)
    )
    prefill = 4 * 0.01 + 1000 * 0.001 + 1000 * 1001 / 2 * 1e-7
    assert (at_once.prefilled_by, at_once.replica) == (0, 1)
    assert at_once.first == pytest.approx(prefill + 0.011, rel=0.01)  # its last token, at the other one
    # While the rest is computed, what is computed travels.
    assert slowly.first - at_once.first == pytest.approx((1000 - 3 * 256) * 1e-4, rel=0.1)


def test_what_the_answering_replica_holds_or_soon_computes_is_not_handed_over():
    short, first, second = TracedRequest(0.0, 100, 2), *turns(1, 2)
    served = simulate(prepared([short, first, replace(second, input_len=1200)], 1.0, 1), split(1, 1)).served
    assert [one.prefilled_by for one in served] == [1, 0, 1]
    assert served[2].cached == 1024


def test_streams_go_on_evenly_where_prompts_are_computed_elsewhere():
    streams = [TracedRequest(0.01 * number, 50, 400) for number in range(4)]
    prompts = [TracedRequest(1.0 + number, 1500, 2) for number in range(4)]
    together, apart = (
        max(
            (one.last - one.first) / 399
            for one in simulate(prepared([*streams, *prompts], 1.0, 1), model).served[:4]
        )
        for model in (fleet(replicas=2), split(1, 1))
    )
    assert apart < 0.8 * together


def test_however_small_the_caches_every_request_of_a_split_fleet_is_answered():
    trace = [*synthetic(3.0, 120, 900, 60, seed=4)]
    model = replace(split(2, 2, 1e-5), cache_blocks=500)
    served = simulate(prepared(trace, 1.0, 1), model).served
    assert len(served) == 120 and all(one.last >= one.first > one.arrival for one in served)
    assert any(one.prefilled_by < 2 for one in served)


def test_units_change_what_is_simulated_little():
    trace = [*synthetic(0.4, 40, 2000, 100, seed=1)]
    by_one, by_eight = (
        report(simulate(prepared(trace, 1.0, unit), fleet(unit=unit)), Limits()) for unit in (1, 8)
    )
    assert by_eight["duration_s"] == pytest.approx(by_one["duration_s"], rel=0.05)
    assert by_eight["ttft_ms"]["mean"] == pytest.approx(by_one["ttft_ms"]["mean"], rel=0.2)


def test_the_balancer_finds_what_round_robin_computes_again():
    trace = turns(conversations=5, count=6)
    found = {
        policy: report(simulate(prepared(trace, 1.0, 32), fleet(policy, unit=32)), Limits())
        for policy in Policy
    }
    cached, spread = found[Policy.PREDICTED_TTFT], found[Policy.ROUND_ROBIN]
    assert cached["hit_rate"] == pytest.approx(15 / 21, abs=0.01)  # all but what each turn adds
    assert spread["hit_rate"] < 0.5
    assert cached["ttft_ms"]["mean"] < 0.7 * spread["ttft_ms"]["mean"]
    assert sum(load["requests"] for load in cached["replicas"]) == len(trace)


def test_a_small_cache_forgets():
    trace = turns(conversations=5, count=6)
    small = simulate(prepared(trace, 1.0, 32), fleet(replicas=1, unit=32, cache_blocks=14))
    assert report(small, Limits())["hit_rate"] < 0.1


def test_goodput_counts_requests_within_the_limits():
    simulated = simulate(prepared(synthetic(0.5, 50, 1000, 50, seed=2), 1.0, 8), fleet(unit=8))
    strict, lax = (report(simulated, Limits(ttft_ms=limit))["goodput"] for limit in (1, 1e6))
    assert (strict["attainment"], lax["attainment"]) == (0, 1)


def test_a_simulation_repeats_itself():
    one, other = (
        simulate(prepared(synthetic(0.5, 50, 900, 50, seed=3), 1.0, 8), fleet(unit=8)) for _ in range(2)
    )
    assert one == other


def test_a_unit_that_divides_no_block_is_refused():
    with pytest.raises(ConfigError, match="--unit must divide"):
        list(prepared(turns(1, 1), 1.0, 7))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "step.json").write_text('{"base": 0.01, "row": 0.001, "context": 1e-7, "steps": 9}')
    lines = [
        {"timestamp": 1e3 * r.arrival, "input_length": r.input_len, "output_length": 20, "hash_ids": r.blocks}
        for r in turns(3, 3)
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def told(*arguments: object) -> dict[str, object]:
    result = CliRunner().invoke(cli, ["simulate", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_prints_one_object_and_draws(files: Path):
    pytest.importorskip("matplotlib")
    common = ("--step-model", files / "step.json", "--trace", files / "trace.jsonl", "--unit", 32)
    result = told(*common, "--replicas", 2, "--slo-ttft", 1e6, "--plot", files / "out.svg")
    assert result["requests"] == 9 and result["policy"] == "predicted-ttft" and len(result["replicas"]) == 2
    assert result["goodput"]["attainment"] == 1
    assert "<svg" in (files / "out.svg").read_text()


def test_the_load_that_saturates_is_what_the_fleet_can_do(files: Path):
    common = ("--step-model", files / "step.json", "--rate", 1, "--requests", 150, "--unit", 16)
    rate = told(*common, "--saturation")["saturation_requests_per_s"]
    below, above = (told(*common, "--rate-scale", rate * part)["ttft_ms"]["mean"] for part in (0.6, 1.5))
    assert 2 * below < above


def test_a_command_without_a_load_or_with_a_wrong_file_is_refused(files: Path):
    result = CliRunner().invoke(cli, ["simulate", "--step-model", str(files / "step.json")])
    assert result.exit_code == 2 and "--trace and --rate" in result.output
    wrong = files / "trace.jsonl"
    result = CliRunner().invoke(cli, ["simulate", "--step-model", str(wrong), "--rate", "1"])
    assert isinstance(result.exception, ConfigError) and "--step-model" in str(result.exception)
