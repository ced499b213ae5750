"""What the operator is told of routed requests: the policy that chose, and what went wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.remotes.upstream import openai_answer
from gateway.routed.fleet import DEAR, FAR_FIRST, eventually, far, here, key_of, keys, routed
from headrace.gateway.request_log import log_requests
from headrace.gateway.routed.mishaps import Mishaps


@pytest.mark.parametrize("stream", [False, True])
def test_the_policy_that_chose_is_logged_and_recorded(tmp_path: Path, stream: bool) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(openai_answer())}
    with routed(tmp_path, models, policies=FAR_FIRST | {"home": {"models": ["near"]}}) as fleet:
        lines: list[str] = []
        fleet.gateway.observers = [log_requests(lines.append, "json")]
        asked = ("auto", "home", "near", "far")
        for number, name in enumerate(asked):
            assert fleet.chat(name, stream=stream).status_code == 200
            eventually(lambda most=number: len(lines) > most)
        recorded = [each["policy"] for each in fleet.decisions(len(asked))]
    told = [json.loads(line) for line in lines]
    assert [each["policy"] for each in told] == ["auto", "home", "-", "-"]
    assert [each["model"] for each in told] == ["far", "near", "near", "far"]
    assert recorded == list(asked)


@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_clients_are_told_who_answered_and_a_model_that_they_named_as_they_named_it(
    tmp_path: Path, stream: bool
) -> None:
    with routed(tmp_path, {"far": far(openai_answer())}, policies={"auto": {}}) as fleet:
        for asked, told in (("auto", "far"), ("auto:latest", "far"), ("far:latest", "far:latest")):
            lines = fleet.post("ollama", asked, stream=stream).text.splitlines()
            assert {json.loads(line)["model"] for line in lines} == {told}


def test_ollamas_clients_may_look_at_what_is_elsewhere_and_load_it_as_what_is_here(tmp_path: Path) -> None:
    """As `ollama run` does before it asks anything."""
    with routed(tmp_path, {"far": far(openai_answer())}, policies={"auto": {}}) as fleet:
        for name in ("auto:latest", "far"):
            shown = fleet.client.post("/api/show", json={"model": name})
            assert shown.json()["capabilities"] == ["completion"]
            told = fleet.client.post("/api/generate", json={"model": name}).json()
            assert (told["model"], told["done"], told["done_reason"]) == (name, True, "load")
        assert fleet.client.post("/api/show", json={"model": "absent"}).status_code == 404


def test_every_list_has_the_policies_that_a_key_may_ask(tmp_path: Path) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(openai_answer())}
    few = keys(tmp_path, alice='models = ["far"]')
    with routed(tmp_path, models, policies={"auto": {}, "home": {"models": ["near"]}}, callers=few) as fleet:
        headers = {"authorization": f"Bearer {key_of('alice')}"}
        tags = fleet.client.get("/api/tags", headers=headers).json()["models"]
        listed = fleet.client.get("/v1/models", headers=headers).json()["data"]
        assert [each["name"].removesuffix(":latest") for each in tags] == [each["id"] for each in listed]
        assert sorted(each["id"] for each in listed) == ["auto", "far"]
        for name, status in (("auto", 200), ("home", 404)):
            assert fleet.client.post("/api/show", json={"model": name}, headers=headers).status_code == status


def test_a_refusal_is_logged_with_the_policy_that_found_no_model(tmp_path: Path) -> None:
    with routed(tmp_path, {"near": here(cost_per_hour=DEAR), "far": far(openai_answer())}) as fleet:
        lines: list[str] = []
        fleet.gateway.observers = [log_requests(lines.append)]
        assert fleet.chat(headrace={"max_cost": 0}).status_code == 400
        eventually(lambda: lines)
    assert " 400 " in lines[0] and lines[0].endswith(" policy=auto")


def test_a_policy_that_fails_is_told_of_in_full_once_and_then_as_a_count_each_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = iter((0.0, 1.0, 59.9, 60.0, 61.0, 119.9, 180.0))
    mishaps, bug = Mishaps(lambda: next(times)), ZeroDivisionError("a bug")
    for _ in range(7):
        mishaps.happened("mine", "failed with", bug, bug)
    first, second, third = caplog.records
    assert first.getMessage() == "the policy mine failed with ZeroDivisionError('a bug')"
    assert first.exc_info and not second.exc_info
    assert "3 times more in 60 s; just now it failed with ZeroDivisionError" in second.getMessage()
    assert "3 times more in 120 s" in third.getMessage()


def test_the_cheapest_model_answers_where_a_policy_fails_and_each_policys_failures_are_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {
        "raises": {"kind": "gateway.routed.policies:Raising", "quality": 0.01},
        "nonsense": {"kind": "gateway.routed.policies:Anything", "quality": 0.01},
    }
    with routed(
        tmp_path, {"near": here(cost_per_hour=DEAR), "far": far(openai_answer())}, policies=broken
    ) as fleet:
        for name in [*broken] * 3:
            why = fleet.chat(name).headers["x-headrace-why"]
            assert why == f"cheapest of 2 with quality 0.01; {name} failed"
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 2 and "failed with ZeroDivisionError" in told[0] and "made no plan" in told[1]
