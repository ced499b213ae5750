"""What is told of routed requests, to the operator: the policy that chose, in the log and in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.remotes.upstream import openai_answer
from gateway.routed.fleet import DEAR, FAR_FIRST, eventually, far, here, routed
from headrace.gateway.request_log import log_requests


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


def test_a_refusal_is_logged_with_the_policy_that_found_no_model(tmp_path: Path) -> None:
    with routed(tmp_path, {"near": here(cost_per_hour=DEAR), "far": far(openai_answer())}) as fleet:
        lines: list[str] = []
        fleet.gateway.observers = [log_requests(lines.append)]
        assert fleet.chat(headrace={"max_cost": 0}).status_code == 400
        eventually(lambda: lines)
    assert " 400 " in lines[0] and lines[0].endswith(" policy=auto")
