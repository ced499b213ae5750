"""Models that fail, stall or refuse: the client has its answer from another one, in every dialect."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.fake_engine import ANSWER
from gateway.remotes.upstream import Exchange, Script, in_turn, openai_answer, refusing, stalling
from gateway.routed.fleet import (
    DEAR,
    DIALECTS,
    FAR_FIRST,
    Fleet,
    cut_after,
    eventually,
    far,
    here,
    key_of,
    keys,
    late,
    routed,
    text_of,
    usage_of,
)
from headrace.gateway.admission import Seat

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS)


async def garbage(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.event('{"choices": [{"delta": {"content": 7, ')
    await exchange.end()


async def a_page(exchange: Exchange) -> None:
    await exchange.answer(200, "<html>Welcome!</html>", content_type="text/html")


async def hanging_up(exchange: Exchange) -> None:
    await exchange.cut()


TOO_LONG = refusing(400, "This model's maximum context length is 5 tokens, and the prompt is too long.")
FAILURES: dict[str, Script] = {
    "500": refusing(500, "broken"),
    "503": refusing(503, "overloaded"),
    "429": refusing(429, "too many", retry_after="30"),
    "401": refusing(401, "who are you?"),
    "404": refusing(404, "no such model"),
    "too long": TOO_LONG,
    "silence": stalling,
    "late": late(1.5),
    "cut before the head": hanging_up,
    "cut before a word": cut_after([]),
    "garbage": garbage,
    "a page": a_page,
}


@EVERY_DIALECT
@BOTH_WAYS
def test_the_answer_tells_its_route(tmp_path: Path, dialect: str, stream: bool) -> None:
    models = {"near": here(cost_per_hour=DEAR, tier="cpu"), "far": far(openai_answer(), tier="cloud")}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.post(dialect, stream=stream)
        assert (answer.status_code, text_of(dialect, answer)) == (200, "Water flows downhill.")
        told, report = answer.headers, usage_of(dialect, answer)["headrace"]
        assert (told["x-headrace-model"], told["x-headrace-tier"]) == ("far", "cloud")
        assert (told["x-headrace-policy"], told["x-headrace-attempts"]) == ("auto", "far")
        assert told["x-headrace-why"] == report["why"] != ""
        assert float(told["x-headrace-estimated-cost"]) > 0
        assert (report["model"], report["policy"], report["attempts"]) == ("far", "auto", ["far"])
        assert report["cost"] == pytest.approx(12e-6)
        if not stream:
            assert float(told["x-headrace-cost"]) == pytest.approx(12e-6)
        eventually(lambda: fleet.spent() == (12_000, 0))


@BOTH_WAYS
@pytest.mark.parametrize("failure", FAILURES)
def test_another_model_answers_where_one_fails(tmp_path: Path, failure: str, stream: bool) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(FAILURES[failure])}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.chat(stream=stream)
        assert (answer.status_code, text_of("chat", answer)) == (200, (ANSWER * 2)[:30]), answer.text
        assert answer.headers["x-headrace-attempts"] == "far,near"
        assert answer.headers["x-headrace-why"] == "far failed; near followed"
        report = usage_of("chat", answer)["headrace"]
        assert (report["model"], report["attempts"]) == ("near", ["far", "near"])
        assert len(fleet.upstreams["far"].exchanges) == 1
        (decision,) = fleet.decisions()
        assert (decision["fell_back"], decision["status"], decision["model"]) == (1, "ok", "near")
        eventually(lambda: fleet.spent()[1] == 0)


def test_another_model_answers_where_nobody_listens(tmp_path: Path) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(openai_answer())}
    models["far"]["url"] = "http://127.0.0.1:9/v1"
    del models["far"]["script"]
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.chat()
        assert (answer.status_code, answer.headers["x-headrace-attempts"]) == (200, "far,near")


def test_a_remote_that_limits_us_is_left_alone_as_long_as_it_says(tmp_path: Path) -> None:
    limiting = in_turn(refusing(429, "slow down", retry_after="2"), openai_answer())
    models = {"near": here(cost_per_hour=DEAR), "far": far(limiting)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        asked = time.monotonic()
        assert attempts(fleet) == "far,near"
        assert attempts(fleet) == "near"
        refused = fleet.chat("far")
        assert refused.status_code == 429 and refused.headers["retry-after"] in ("1", "2")
        eventually(lambda: attempts(fleet) == "far")
        assert time.monotonic() - asked > 2
        assert len(fleet.upstreams["far"].exchanges) == 2


def attempts(fleet: Fleet) -> str:
    answer = fleet.chat()
    assert answer.status_code == 200
    return answer.headers["x-headrace-attempts"]


def test_a_remote_that_fails_again_and_again_is_tried_by_one_request_at_a_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(refusing(401))}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        asked = fleet.upstreams["far"].exchanges
        while fleet.metric("headrace_route_circuit_open", model="far") == 0:
            last = time.monotonic()
            assert attempts(fleet) == "far,near" and len(asked) < 10
        failures = len(asked)
        assert attempts(fleet) == "near"
        assert len(asked) == failures
        fleet.upstreams["far"].script = openai_answer()
        eventually(lambda: attempts(fleet) == "far")
        assert time.monotonic() - last > 1
        assert fleet.metric("headrace_route_circuit_open", model="far") == 0
        assert attempts(fleet) == "far"
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert [each[:11] for each in told] == ["far fails, ", "far answers"]
    assert "with the status 401" in told[0]


def test_a_circuit_that_is_open_does_not_keep_the_last_model_from_being_asked(tmp_path: Path) -> None:
    with routed(tmp_path, {"far": far(refusing(500))}, policies={"auto": {}}) as fleet:
        for _ in range(6):
            assert fleet.chat().status_code == 503
        fleet.upstreams["far"].script = openai_answer()
        assert fleet.chat().status_code == 200


@EVERY_DIALECT
@BOTH_WAYS
def test_where_nobody_answers_the_first_error_is_told_in_the_dialect(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    models = {
        "one": far(refusing(500, "burnt down")),
        "two": far(stalling, input_price=2.0, first_token_timeout=0.3),
    }
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.post(dialect, stream=stream)
        assert answer.status_code == 503
        error = answer.json()["error"]
        message = error if dialect == "ollama" else error["message"]
        assert message == (
            "The remote model 'one' failed with the status 500: burnt down. "
            "Nobody answered: one (remote_failed), two (remote_timeout)."
        )
        assert answer.headers["x-headrace-attempts"] == "one,two"
        assert answer.json().get("type") == ("error" if dialect == "anthropic" else None)
        eventually(lambda: fleet.spent() == (0, 0))
        assert fleet.metric("headrace_routed_requests_total", status="remote_failed", model="-") == 1


def test_a_connection_that_was_kept_for_too_long_is_no_reason_to_fail(tmp_path: Path) -> None:
    with routed(tmp_path, {"far": far(in_turn(hanging_up, openai_answer("Fine.")))}) as fleet:
        answer = fleet.chat("far")
        assert (answer.status_code, answer.headers["x-headrace-attempts"]) == (200, "far,far")
    with routed(tmp_path / "again", {"far": far(hanging_up)}) as fleet:
        assert fleet.chat("far").status_code == 503
        assert len(fleet.upstreams["far"].exchanges) == 2


def test_a_model_that_is_named_is_answered_by_no_other(tmp_path: Path) -> None:
    models = {"near": here(), "far": far(refusing(500))}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        assert fleet.chat("far").status_code == 503
        near = fleet.chat("near")
        assert (near.status_code, near.headers["x-headrace-why"]) == (200, "named by the request")
        assert near.json()["usage"]["headrace"]["policy"] == "near"
        fleet.engines["near"].dies_after = 0
        assert fleet.chat("near").status_code == 503
        assert len(fleet.upstreams["far"].exchanges) == 1
        unknown = fleet.chat("other")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"temperature": 9.0}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "Hi"}]}, "messages[0].role"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_at_once(tmp_path: Path, fields: Any, field: str) -> None:
    with routed(tmp_path, {"near": here(), "far": far(openai_answer())}, policies=FAR_FIRST) as fleet:
        answer = fleet.chat(**fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
        assert not fleet.upstreams["far"].exchanges
        assert not fleet.engines["near"].submitted


def test_a_request_that_a_remote_finds_wrong_is_asked_of_nobody_else(tmp_path: Path) -> None:
    wrong = refusing(400, "temperature must be below 1")
    with routed(tmp_path, {"near": here(cost_per_hour=DEAR), "far": far(wrong)}, policies=FAR_FIRST) as fleet:
        answer = fleet.chat()
        assert answer.status_code == 400
        assert "temperature must be below 1" in answer.json()["error"]["message"]
        assert not fleet.engines["near"].submitted


def test_models_that_cannot_do_it_are_not_asked(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    models = {
        "plain": far(openai_answer(), abilities=[], input_price=0.1),
        "short": far(openai_answer(), context_length=20, input_price=0.2),
        "able": far(openai_answer()),
    }
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        message = [{"role": "user", "content": "Look around you. " * 20}]
        answer = fleet.chat(tools=tools, messages=message)
        assert answer.headers["x-headrace-attempts"] == "able"
        refused = fleet.chat(tools=tools, messages=message, headrace={"models": ["plain", "short"]})
        assert refused.status_code == 400
        told = refused.json()["error"]["message"]
        assert "plain: no tools" in told and "short: context of 20 tokens is too short" in told


def test_what_no_model_can_ever_do_is_told_before_what_one_may_later(tmp_path: Path) -> None:
    models = {"plain": far(openai_answer()), "busy": far(openai_answer(), requests_per_minute=1)}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        assert fleet.chat("busy").status_code == 200
        refused = fleet.chat(messages=[{"role": "user", "content": [picture]}])
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_by_models")
        assert "plain: no vision; busy: no vision" in refused.json()["error"]["message"]
        assert "retry-after" not in refused.headers
        assert fleet.chat("busy").status_code == 429


def test_a_limit_of_the_callers_own_is_none_of_the_remotes(tmp_path: Path) -> None:
    callers = keys(tmp_path, poor="requests_per_minute = 1", rich="")
    models = {"near": here(cost_per_hour=DEAR), "far": far(openai_answer())}
    with routed(tmp_path, models, policies=FAR_FIRST, callers=callers) as fleet:
        assert fleet.chat(key=key_of("poor")).status_code == 200
        refused = fleet.chat(key=key_of("poor"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "poor" in refused.json()["error"]["message"]
        assert fleet.chat(key=key_of("rich")).headers["x-headrace-attempts"] == "far"
        assert not fleet.engines["near"].submitted


@pytest.mark.parametrize(
    "words", ["this model does not support tools", "'top_k' is not supported", "Unsupported value: 'n'"]
)
def test_what_one_model_does_not_support_another_one_does(tmp_path: Path, words: str) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(refusing(400, words))}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        assert attempts(fleet) == "far,near"


@pytest.mark.parametrize(
    "policy", [{}, {"hedge": 1.0}, {"kind": "gateway.routed.policies:AsListed"}], ids=str
)
def test_a_limit_towards_a_remote_is_kept_whatever_is_asked_at_a_time(
    tmp_path: Path, policy: dict[str, Any]
) -> None:
    """By those that fall back to it, too."""
    most = at_a_time = 0

    async def counting(exchange: Exchange) -> None:
        nonlocal most, at_a_time
        for _ in range(20):  # what was given up a moment ago is noticed first
            await asyncio.sleep(0)
        at_a_time += 1
        most = max(most, at_a_time)
        try:
            await asyncio.sleep(0.3)
        finally:
            at_a_time -= 1
        await openai_answer()(exchange)

    models = {
        "first": far(late(0.2), first_token_timeout=0.1),
        "far": far(counting, concurrency=2, input_price=2.0, first_token_timeout=20.0),
        "near": here(cost_per_hour=DEAR),
    }
    with routed(tmp_path, models, policies={"auto": {"quality": 0.01} | policy}) as fleet:
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: fleet.chat(), range(20)))
        assert [answer.status_code for answer in answers] == 20 * [200]
        assert most == 2


@pytest.mark.parametrize("per_day", [None, 1.0])
def test_spend_that_cannot_be_written_matters_where_a_budget_binds(
    tmp_path: Path, per_day: float | None
) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(openai_answer())}
    with routed(tmp_path, models, policies=FAR_FIRST, budgets={"per_day": per_day}) as fleet:
        with sqlite3.connect(tmp_path / "routing.sqlite") as connection:
            connection.execute("DROP TABLE day_spend")
        answer = fleet.chat()
        if per_day is not None:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "budget_unavailable")
            assert not fleet.upstreams["far"].exchanges
        else:
            assert answer.status_code == 200


def test_an_attempt_that_failed_does_not_count_as_a_complete_answer(tmp_path: Path) -> None:
    """Else the length that it did not reach would be taken for what answers usually have."""
    complete: list[bool] = []
    models = {"far": far(refusing(500)), "near": here(cost_per_hour=DEAR)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        leave = fleet.gateway.admission.leave

        def noted(seat: Seat, **how: bool) -> None:
            complete.append(how["complete"])
            leave(seat, **how)

        fleet.gateway.admission.leave = noted  # type: ignore[method-assign]
        assert fleet.chat().status_code == 200
        eventually(lambda: complete == [False, True])
