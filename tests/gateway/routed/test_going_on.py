"""Streams that break off: a model here goes on with them, or the client is told in its dialect's words."""

from __future__ import annotations

import asyncio
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gateway.fake_engine import ANSWER
from gateway.remotes.upstream import Exchange, chunk, openai_answer, stalling
from gateway.routed.fleet import (
    DEAR,
    DIALECTS,
    FAR_FIRST,
    HI,
    cut_after,
    events,
    eventually,
    far,
    here,
    routed,
    slowly,
    text_of,
    usage_of,
)

EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS)
CUT = cut_after(["Water ", "flows "])
REST = "downhill, always."


@EVERY_DIALECT
@pytest.mark.parametrize("error", [None, {"message": "overloaded", "type": "server_error"}])
def test_a_stream_that_is_cut_is_continued_as_if_nothing_was(
    tmp_path: Path, dialect: str, error: dict[str, str] | None
) -> None:
    cut = cut_after(["Water ", "flows "], error)
    models = {"near": here(answer=REST, cost_per_hour=DEAR), "far": far(cut)}
    logged: list[int] = []
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        fleet.gateway.observers = [lambda record, status: logged.append(record.figures(status)["output"])]
        answer = fleet.post(dialect, stream=True)
        assert (answer.status_code, text_of(dialect, answer)) == (200, "Water flows " + REST)
        assert answer.headers["x-headrace-attempts"] == "far"
        report = usage_of(dialect, answer)["headrace"]
        assert (report["model"], report["continued_by"]) == ("far", ["near"])
        assert report["attempts"] == ["far", "near"]
        (submit,) = fleet.engines["near"].submitted
        assert bytes(submit.prompt) == b"user:Hi;assistant:Water flows ;"
        assert 30 - 6 <= submit.max_tokens < 30
        assert_well_formed(dialect, answer)
        (decision,) = fleet.decisions()
        assert (decision["status"], decision["attempts"]) == ("ok", 2)
        eventually(lambda: logged == [decision["output_tokens"]])
        eventually(lambda: fleet.spent()[1] == 0)
        assert fleet.spent()[0] >= report["cost"] * 1e9 - 1
        assert fleet.metric("headrace_route_turns_total", turn="continuation") == 1


def assert_well_formed(dialect: str, answer: httpx.Response) -> None:
    """One beginning, one end, and no error between."""
    told = events(answer)
    assert not [each for each in told if each.get("error")]
    if dialect == "chat":
        assert answer.text.endswith("data: [DONE]\n\n")
        reasons = [c["finish_reason"] for e in told for c in e["choices"]]
        assert reasons[-1] == "stop" and reasons.count("stop") == 1
        assert len({each["id"] for each in told}) == len({each["model"] for each in told}) == 1
        assert [c["delta"].get("role") for e in told for c in e["choices"]].count("assistant") == 1
    elif dialect == "ollama":
        assert [each["done"] for each in told].count(True) == 1 and told[-1]["done"]
    else:
        first, last = ("message_start", "message_stop") if dialect == "anthropic" else (
            "response.created", "response.completed")  # fmt: skip
        kinds = [each["type"] for each in told]
        assert (kinds[0], kinds[-1]) == (first, last)
        assert kinds.count(first) == kinds.count(last) == 1
        started = "content_block_start" if dialect == "anthropic" else "response.content_part.added"
        assert kinds.count(started) == 1


@EVERY_DIALECT
def test_where_nobody_can_go_on_the_stream_ends_with_an_error(tmp_path: Path, dialect: str) -> None:
    models = {"far": far(CUT), "other": far(openai_answer(), input_price=2.0)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.post(dialect, stream=True)
        assert (answer.status_code, text_of(dialect, answer)) == (200, "Water flows ")
        message = "The remote model 'far' broke off before its answer ended."
        assert message in json.dumps(events(answer)[-1])
        assert "[DONE]" not in answer.text
        assert not fleet.upstreams["other"].exchanges
        (decision,) = fleet.decisions()
        assert decision["status"] == "remote_cut_off"
        assert fleet.metric("headrace_routed_requests_total", status="remote_cut_off", model="far") == 1
        eventually(lambda: fleet.spent()[1] == 0)
        assert fleet.spent()[0] == decision["cost"] > 0


@pytest.mark.parametrize("fields", [{"n": 2}, {"response_format": {"type": "json_object"}}], ids=str)
def test_what_cannot_be_taken_up_in_the_middle_ends_with_an_error(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    models = {"near": here(answer=REST, cost_per_hour=DEAR), "far": far(CUT)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.chat(stream=True, **fields)
        assert "broke off" in events(answer)[-1]["error"]["message"]
        assert not fleet.engines["near"].submitted


async def calling(exchange: Exchange) -> None:
    """Breaks off within the call of a tool."""
    await exchange.begin()
    function = {"name": "look", "arguments": '{"wh'}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    await exchange.event(chunk(tool_calls=[call]))
    await asyncio.sleep(0.02)
    await exchange.cut()


def test_a_call_that_breaks_off_is_not_made_up_by_another_model(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    models = {"near": here(cost_per_hour=DEAR, abilities=["tools"]), "far": far(calling)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.chat(stream=True, tools=tools)
        assert "broke off" in events(answer)[-1]["error"]["message"]
        assert not fleet.engines["near"].submitted


def test_a_whole_answer_that_breaks_off_is_begun_anew_elsewhere(tmp_path: Path) -> None:
    models = {"near": here(answer=REST, cost_per_hour=DEAR), "far": far(CUT)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.chat()
        assert text_of("chat", answer) == REST
        report = usage_of("chat", answer)["headrace"]
        assert (report["model"], report["continued_by"]) == ("near", [])
        assert float(answer.headers["x-headrace-cost"]) == pytest.approx(report["cost"])
        eventually(lambda: fleet.spent()[1] == 0)
        assert fleet.spent()[0] == pytest.approx(report["cost"] * 1e9, abs=2)


def test_the_one_who_goes_on_may_break_off_too(tmp_path: Path) -> None:
    near, third = here(answer=REST, cost_per_hour=DEAR), here(answer="hill.", cost_per_hour=2 * DEAR)
    near["engine"].dies_after = 4
    with routed(tmp_path, {"near": near, "far": far(CUT), "third": third}, policies=FAR_FIRST) as fleet:
        answer = fleet.chat(stream=True)
        assert text_of("chat", answer) == "Water flows down" + "hill."
        assert usage_of("chat", answer)["headrace"]["continued_by"] == ["near", "third"]
        (submit,) = fleet.engines["third"].submitted
        assert bytes(submit.prompt) == b"user:Hi;assistant:Water flows down;"
        assert_well_formed("chat", answer)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("model", ["near", "far"])
def test_a_client_that_leaves_ends_what_is_done_for_it(tmp_path: Path, model: str, stream: bool) -> None:
    models = {"near": here(step_seconds=0.02), "far": far(slowly(0.02))}
    with routed(tmp_path, models, policies={"auto": {"models": [model]}}, budgets={"per_day": 10.0}) as fleet:

        async def ask() -> None:
            async with httpx.AsyncClient() as client:
                body = {"model": "auto", "messages": HI, "max_tokens": 400, "stream": stream}
                url = f"{fleet.url}/v1/chat/completions"
                async with client.stream("POST", url, json=body) as answer:
                    async for _ in answer.aiter_lines():
                        pass

        async def leave() -> None:
            asking = asyncio.create_task(ask())
            while not (fleet.engines["near"].submitted or fleet.upstreams["far"].exchanges):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking

        asyncio.run(leave())
        if model == "near":
            eventually(lambda: fleet.engines["near"].cancelled)
        else:
            eventually(lambda: fleet.upstreams["far"].open == 0 and fleet.upstreams["far"].left == 1)
        eventually(lambda: fleet.spent()[1] == 0)
        assert (fleet.spent()[0] > 0) == (model == "far")
        eventually(lambda: fleet.metric("headrace_routed_requests_total", status="cancelled") == 1)
        assert fleet.gateway.admission.admitted == 0
        if stream:
            assert fleet.decisions()[0]["status"] == "cancelled"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_request_whose_time_is_over_is_told_so_and_paid_for_as_far_as_it_came(
    tmp_path: Path, stream: bool
) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(slowly(0.02))}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.chat(stream=stream, max_tokens=400, x_headrace_timeout=1)
        assert answer.status_code == (200 if stream else 504)
        assert "did not end within its 1 s" in answer.text
        eventually(lambda: fleet.spent()[1] == 0)
        assert fleet.spent()[0] > 0
        assert not fleet.engines["near"].submitted
        if stream:
            assert fleet.decisions()[0]["status"] == "timeout"


def test_a_stream_that_broke_off_counts_against_the_remote(tmp_path: Path) -> None:
    models = {"near": here(answer=ANSWER, cost_per_hour=DEAR), "far": far(CUT)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        while fleet.chat(stream=True).headers["x-headrace-attempts"] == "far":
            assert len(fleet.upstreams["far"].exchanges) < 20
        assert fleet.metric("headrace_route_circuit_open", model="far") == 1


def test_a_request_that_was_let_in_has_its_answer_while_the_server_drains(tmp_path: Path) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(stalling, first_token_timeout=0.5)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet, ThreadPoolExecutor() as pool:
        asking = pool.submit(fleet.chat)
        admission = fleet.gateway.admission
        eventually(lambda: admission.admitted)
        admission.draining = True
        assert fleet.chat().json()["error"]["code"] == "draining"
        assert asking.result(10).headers["x-headrace-attempts"] == "far,near"
        admission.draining = False


def test_a_limit_that_is_told_in_the_middle_is_kept(tmp_path: Path) -> None:
    limited = cut_after(["Water "], {"message": "too fast", "type": "rate_limit_error"})
    models = {"near": here(answer=REST, cost_per_hour=DEAR), "far": far(limited)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        assert usage_of("chat", fleet.chat(stream=True))["headrace"]["continued_by"] == ["near"]
        assert fleet.chat(stream=True).headers["x-headrace-attempts"] == "near"
