"""What goes on around routed requests: batches, metrics, lists of models, logs; and no key in any of it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.remotes.upstream import Exchange, chunk, in_turn, openai_answer, refusing
from gateway.routed.fleet import (
    DEAR,
    DIALECTS,
    FAR_FIRST,
    SECRET,
    Fleet,
    cut_after,
    eventually,
    far,
    here,
    key_of,
    keys,
    routed,
    text_of,
)

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def two(**remote: Any) -> dict[str, Any]:
    return {"near": here(cost_per_hour=DEAR), "far": far(**{"script": openai_answer()} | remote)}


def test_a_batch_is_routed_line_by_line(tmp_path: Path) -> None:
    script = in_turn(refusing(500), openai_answer())
    with routed(tmp_path, two(script=script), policies=FAR_FIRST) as fleet:
        results = batch(fleet, 4)
        assert [line["response"]["status_code"] for line in results] == 4 * [200]
        reports = [line["response"]["body"]["usage"]["headrace"] for line in results]
        assert {report["policy"] for report in reports} == {"auto"}
        assert sorted(report["model"] for report in reports).count("far") >= 3
        eventually(lambda: fleet.spent()[1] == 0)
        assert fleet.spent()[0] >= sum(report["cost"] for report in reports) * 1e9 - 1


def batch(fleet: Fleet, count: int) -> list[dict[str, Any]]:
    """The results of so many lines."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    lines = [
        {"custom_id": f"{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(count)
    ]
    content = "\n".join(map(json.dumps, lines))
    sent = fleet.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})
    asked = {
        "input_file_id": sent.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    began = fleet.client.post("/v1/batches", json=asked).json()

    def state() -> dict[str, Any]:
        told: dict[str, Any] = fleet.client.get(f"/v1/batches/{began['id']}").json()
        return told

    eventually(lambda: state()["status"] in ("completed", "failed"), 15)
    results = fleet.client.get(f"/v1/files/{state()['output_file_id']}/content").text
    return [json.loads(line) for line in results.splitlines()]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_answer_whose_remote_ends_its_response_later_counts_as_given(tmp_path: Path, stream: bool) -> None:
    async def ending_late(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event(chunk(content="Water"))
        await exchange.event(chunk(reason="stop"))
        await exchange.event("[DONE]")
        await asyncio.sleep(0.03)
        await exchange.end()

    with routed(tmp_path, two(script=ending_late), policies=FAR_FIRST) as fleet:
        for number in range(1, 4):
            assert text_of("chat", fleet.chat(stream=stream)) == "Water"
            eventually(lambda: len(fleet.decisions()) == number)  # noqa: B023
        assert {each["status"] for each in fleet.decisions()} == {"ok"}
        assert fleet.upstreams["far"].connections == 1


def test_what_a_template_puts_around_prompts_is_learnt(tmp_path: Path) -> None:
    with routed(tmp_path, two(script=openai_answer(usage=(40, 3))), policies=FAR_FIRST) as fleet:
        assert input_tokens(fleet, "far") < 10
        for _ in range(12):
            assert fleet.chat().headers["x-headrace-model"] == "far"
        assert 36 <= input_tokens(fleet, "far") <= 42
        assert input_tokens(fleet, "near") < 10


def input_tokens(fleet: Fleet, model: str) -> int:
    """That the model is expected to make of a short prompt."""
    (tokens,) = [each["input_tokens"] for each in fleet.explain()["candidates"] if each["model"] == model]
    return int(tokens)


def test_metrics_say_what_happened(tmp_path: Path) -> None:
    script = in_turn(openai_answer(), refusing(500), cut_after(["Water "]), openai_answer())
    with routed(tmp_path, two(script=script), policies=FAR_FIRST) as fleet:
        for _ in range(3):
            assert fleet.chat(stream=True).status_code == 200
        eventually(lambda: fleet.metric("headrace_routed_requests_total") == 3)
        metric = fleet.metric
        assert metric("headrace_routed_requests_total", policy="auto", model="far", status="ok") == 2
        assert metric("headrace_routed_requests_total", policy="auto", model="near", status="ok") == 1
        assert metric("headrace_route_attempts_total", policy="auto", model="far") == 3
        assert metric("headrace_route_attempts_total", policy="auto", model="near") == 2
        assert metric("headrace_route_turns_total", policy="auto", turn="fallback") == 1
        assert metric("headrace_route_turns_total", policy="auto", turn="continuation") == 1
        assert metric("headrace_route_decision_seconds_count", policy="auto") == 3
        assert metric("headrace_generated_tokens_total", model="far") > 0
        cost = metric("headrace_route_cost_total")
        assert round(cost * 1e9) == pytest.approx(fleet.spent()[0], abs=5)


async def leaking(exchange: Exchange) -> None:
    """Repeats the key that it was shown, as careless servers do."""
    shown = exchange.headers["authorization"]
    await exchange.answer(401, {"error": {"message": f"{shown} is no key", "code": SECRET, "param": SECRET}})


async def leaking_late(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.event({"error": {"message": f"Bearer {SECRET}!", "type": SECRET}})
    await exchange.end()


@pytest.mark.parametrize("script", [leaking, leaking_late])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_key_is_nowhere_to_be_seen(
    tmp_path: Path, dialect: str, script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with routed(tmp_path, {"far": far(script)}, policies={"auto": {}}) as fleet:
        answers = [fleet.post(dialect, model, stream=s) for model in ("auto", "far") for s in (False, True)]
        pages = [fleet.client.get(path) for path in ("/metrics", "/v1/models", "/health", "/openapi.json")]
        explained = fleet.client.post("/v1/route", json={"model": "auto", "prompt": "Hi"})
        told = [fleet.upstreams["far"].exchanges[0].headers["authorization"]]
        assert told == [f"Bearer {SECRET}"]
        for answer in [*answers, *pages, explained]:
            assert SECRET not in answer.text
            assert SECRET not in str(answer.headers)
            assert fleet.upstreams["far"].url not in answer.text
    for file in tmp_path.iterdir():
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()
    assert SECRET not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_durations_are_those_of_the_model(tmp_path: Path, stream: bool) -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event(chunk(content="Water "))
        await asyncio.sleep(0.3)
        await exchange.event(chunk(content="flows."))
        await exchange.event(chunk(reason="stop"))
        await exchange.event("[DONE]")
        await exchange.end()

    with routed(tmp_path, two(script=slow), policies=FAR_FIRST) as fleet:
        told = json.loads(fleet.post("ollama", stream=stream).text.splitlines()[-1])
        assert told["eval_duration"] > 0.1e9
        parts = [told[f"{part}_duration"] for part in ("load", "prompt_eval", "eval")]
        assert min(parts) >= 0 and sum(parts) == pytest.approx(told["total_duration"], abs=1e6)


def test_several_choices_and_logprobs_come_from_one_model(tmp_path: Path) -> None:
    models = {"near": here(answer="Yes."), "far": far(openai_answer())}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = fleet.chat(n=3, logprobs=True, top_logprobs=2)
        assert len(answer.json()["choices"]) == 3
        for choice in answer.json()["choices"]:
            assert choice["message"]["content"] == "Yes."
            assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
        streamed = fleet.chat(n=2, stream=True)
        assert sorted(text_of("chat", streamed)) == sorted(2 * "Yes.")


def test_models_of_the_tables_and_policies_are_listed(tmp_path: Path) -> None:
    with routed(tmp_path, two(), policies=FAR_FIRST) as fleet:
        listed = {each["id"] for each in fleet.client.get("/v1/models").json()["data"]}
        assert listed == {"near", "far", "auto"}


def test_text_completions_go_to_models_that_complete_texts(tmp_path: Path) -> None:
    with routed(tmp_path, two(), policies=FAR_FIRST) as fleet:
        body = {"model": "auto", "prompt": "Water", "max_tokens": 5}
        answer = fleet.client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.headers["x-headrace-model"]) == (200, "near")


def test_a_model_here_that_is_named_answers_as_it_does_without_tables(tmp_path: Path) -> None:
    """Also what no other model could, and what its prompt's length makes look too long."""
    with routed(tmp_path, two(), policies=FAR_FIRST) as fleet:

        def complete(prompt: Any, model: str = "near") -> Any:
            body = {"model": model, "prompt": prompt, "max_tokens": 3}
            return fleet.client.post("/v1/completions", json=body)

        assert complete([72, 105]).json()["usage"]["prompt_tokens"] == 2
        assert complete([72, 105], "auto").status_code == 400
        many = complete(["word " * 50] * 20)
        assert many.json()["usage"]["prompt_tokens"] == 20 * 250
        assert complete(["word " * 50] * 20, "auto").status_code == 200
        assert fleet.chat("near", tools=[TOOL]).json()["error"]["param"] == "tools"
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        refused = fleet.chat("near", messages=[{"role": "user", "content": [picture]}])
        assert refused.json()["error"]["param"] == "messages"
        long = fleet.chat("near", messages=[{"role": "user", "content": "a" * 600}])
        assert "This model's maximum context length is 512 tokens" in long.json()["error"]["message"]


def test_a_prompt_that_only_seems_too_long_is_answered(tmp_path: Path) -> None:
    models = {"far": far(openai_answer(), context_length=50)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        spaces = [{"role": "user", "content": "Hi" + " " * 400}]
        for model in ("auto", "far"):
            assert fleet.chat(model, messages=spaces).status_code == 200


def test_a_route_that_is_not_there_is_told_with_those_that_the_key_may_name(tmp_path: Path) -> None:
    callers = keys(tmp_path, near='models = ["near"]')
    with routed(tmp_path, two(), policies=FAR_FIRST, callers=callers) as fleet:
        answer = fleet.client.post(
            "/v1/route",
            json={"model": "atuo", "prompt": "Hi"},
            headers={"authorization": f"Bearer {key_of('near')}"},
        )
        assert answer.status_code == 404
        assert answer.json()["error"]["message"].endswith("'atuo'; there are: near, auto.")
