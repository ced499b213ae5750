"""A first token that is late: the next model is asked beside, and the first that answers is heard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gateway.fake_engine import ANSWER
from gateway.remotes.upstream import refusing, stalling
from gateway.routed.fleet import DEAR, Fleet, eventually, far, here, late, routed, text_of, usage_of

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
HEDGED: dict[str, Any] = {"auto": {"quality": 0.01, "hedge": 1.0}}
"""A remote that has not answered yet is expected to take 0.4 s and a little."""


def settled(fleet: Fleet) -> int:
    """Billionths spent, once nothing is open."""
    eventually(lambda: fleet.spent()[1] == 0)
    return fleet.spent()[0]


@BOTH_WAYS
def test_the_sooner_one_is_heard_and_the_other_let_go(tmp_path: Path, stream: bool) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(stalling, first_token_timeout=30.0)}
    with routed(tmp_path, models, policies=HEDGED, budgets={"per_day": 1e6}) as fleet:
        began = time.monotonic()
        answer = fleet.chat(stream=stream)
        assert 0.3 < time.monotonic() - began < 5
        assert text_of("chat", answer) == (ANSWER * 2)[:30]
        assert answer.headers["x-headrace-model"] == "near"
        assert answer.headers["x-headrace-attempts"] == "far,near"
        assert answer.headers["x-headrace-why"] == "far was late; near was sooner"
        report = usage_of("chat", answer)["headrace"]
        assert (report["model"], report["attempts"]) == ("near", ["far", "near"])
        eventually(lambda: fleet.upstreams["far"].left == 1)
        assert settled(fleet) == pytest.approx(report["cost"] * 1e9, abs=2)
        (decision,) = fleet.decisions()
        assert (decision["hedged"], decision["fell_back"], decision["status"]) == (1, 0, "ok")
        assert fleet.metric("headrace_route_turns_total", turn="hedge") == 1
        assert fleet.metric("headrace_route_circuit_open", model="far") == 0


@BOTH_WAYS
def test_the_first_one_is_heard_where_it_is_sooner_after_all(tmp_path: Path, stream: bool) -> None:
    near = here(cost_per_hour=DEAR)
    near["engine"].held.clear()
    models = {"near": near, "far": far(late(0.7), first_token_timeout=10.0)}
    with routed(tmp_path, models, policies=HEDGED) as fleet:
        answer = fleet.chat(stream=stream)
        assert text_of("chat", answer) == "Late words."
        assert answer.headers["x-headrace-attempts"] == "far,near"
        assert usage_of("chat", answer)["headrace"]["model"] == "far"
        eventually(lambda: fleet.engines["near"].cancelled)
        # The loser's prompt was computed, as far as anyone can tell.
        assert settled(fleet) >= 11_000


@BOTH_WAYS
def test_one_that_fails_while_late_is_followed(tmp_path: Path, stream: bool) -> None:
    models = {
        "near": here(cost_per_hour=DEAR),
        "far": far(late(30.0), first_token_timeout=0.6),
        "second": far(refusing(500), input_price=2.0),
    }
    with routed(tmp_path, models, policies=HEDGED) as fleet:
        answer = fleet.chat(stream=stream)
        assert answer.status_code == 200
        assert answer.headers["x-headrace-attempts"] == "far,second,near"


def test_a_long_answer_that_began_in_time_is_not_late(tmp_path: Path) -> None:
    far_one = here(step_seconds=0.03, answer="It takes me a while.")
    models = {"slow": far_one, "other": here(cost_per_hour=DEAR)}
    with routed(tmp_path, models, policies={"auto": {"quality": 0.01, "hedge": 20.0}}) as fleet:
        answer = fleet.chat()
        assert text_of("chat", answer) == "It takes me a while."
        assert answer.headers["x-headrace-attempts"] == "slow"


def test_money_for_one_only_is_no_reason_to_fail(tmp_path: Path) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(late(0.7), first_token_timeout=10.0)}
    with routed(tmp_path, models, policies=HEDGED) as fleet:
        most = {each["model"]: each["most_cost"] for each in fleet.explain()["candidates"]}
    assert most["near"] > most["far"]
    # What is left suffices for either, and not for both.
    budgets = {"per_day": most["near"] + most["far"] / 2}
    with routed(tmp_path / "again", models, policies=HEDGED, budgets=budgets) as fleet:
        answer = fleet.chat()
        assert (answer.status_code, text_of("chat", answer)) == (200, "Late words.")
        assert answer.headers["x-headrace-attempts"] == "far"
        assert fleet.decisions()[0]["hedged"] == 0


@pytest.mark.parametrize("hedge", [None, 1.0])
def test_a_fallback_that_the_budget_forbids_gives_way_to_a_cheaper_one(
    tmp_path: Path, hedge: float | None
) -> None:
    options = {} if hedge is None else {"hedge_after": 0.0}
    policies = {"auto": {"kind": "gateway.routed.policies:AsListed", "options": options}}
    models = {"far": far(refusing(500)), "dear": here(cost_per_hour=1e6), "free": here()}
    with routed(tmp_path, models, policies=policies, budgets={"per_request": 0.01}) as fleet:
        answer = fleet.chat()
        assert answer.headers["x-headrace-attempts"] == "far,free"
