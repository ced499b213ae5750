"""Models that fail, stall or refuse: the client has its answer from another one, in every dialect."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.fake_engine import ANSWER
from gateway.remotes.upstream import Exchange, Script, openai_answer, refusing, stalling
from gateway.routed.fleet import (
    DIALECTS,
    SECRET,
    cut_after,
    eventually,
    far,
    here,
    late,
    routed,
    text_of,
    usage_of,
)

FAR_FIRST = {"auto": {"quality": 0.01}}
"""Any model will do, and `far` is the cheapest."""
DEAR = 36000.0
"""An hour of a local model, in the currency of the prices."""
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", SECRET)


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
