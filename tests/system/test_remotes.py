"""A second Headrace server as a remote model, through both APIs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

from gateway.remotes.asking import Told, answer, request, run
from gateway.routed.fleet import routed
from headrace.gateway.remotes.errors import RemoteError
from headrace.gateway.remotes.remote import Remote
from headrace.routing.tables import ModelTable
from system.test_serve import Server, serving

MODEL = "qwen2.5-coder-0.5b"
COUNT: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count from 1 to 5."}]
ASK: Any = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": CITY},
}
BOTH = pytest.mark.parametrize("api", ["openai", "anthropic"])


@pytest.fixture(scope="module")
def server(model_path: Callable[[str], Path]) -> Iterator[Server]:
    with serving(model_path(MODEL), "--model", MODEL) as server:
        yield server


def ask(server: Server, api: Any, **fields: Any) -> Told:
    async def work() -> Told:
        remote = Remote("far", ModelTable(url=f"{server.url}/v1", api=api, upstream=MODEL), "any key")
        try:
            return await answer(remote, request(temperature=0.0, **fields))
        finally:
            await remote.close()

    return run(work(), seconds=60)


def directly(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "temperature": 0} | fields
    told: dict[str, Any] = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    return told


@BOTH
def test_the_answer_is_the_one_that_the_server_gives(server: Server, api: str) -> None:
    told = ask(server, api, messages=COUNT, max_tokens=12)
    expected = directly(server, messages=COUNT, max_tokens=12)
    choice = expected["choices"][0]
    assert told.text == choice["message"]["content"]
    assert told.finish_reasons == [choice["finish_reason"]] == ["length"]
    assert told.believed and told.usage is not None
    assert told.usage.completion_tokens == 12
    assert told.usage.prompt_tokens == expected["usage"]["prompt_tokens"]


@BOTH
def test_a_tool_is_called_and_its_result_arrives(server: Server, api: str) -> None:
    told = ask(server, api, messages=ASK, tools=[WEATHER], max_tokens=40)
    (call,) = told.answers[0].calls
    assert (call.name, told.finish_reasons) == ("get_weather", ["tool_calls"])
    assert json.loads(call.arguments) == {"city": "Paris"}
    called = {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
    turn = [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": call.id, "content": "Snow and 3 degrees."},
    ]
    told = ask(server, api, messages=turn, tools=[WEATHER], max_tokens=40)
    expected = directly(server, messages=turn, tools=[WEATHER], max_tokens=40)
    assert told.usage is not None and told.usage.prompt_tokens == expected["usage"]["prompt_tokens"]
    assert [one.name for one in told.answers[0].calls] == [
        one["function"]["name"] for one in expected["choices"][0]["message"]["tool_calls"]
    ]


@BOTH
def test_a_refusal_of_the_server_is_told_as_it_is(server: Server, api: str) -> None:
    with pytest.raises(RemoteError) as caught:
        ask(server, api, messages=[{"role": "user", "content": "a b c " * 20_000}], max_tokens=5)
    error = caught.value
    assert (error.code, error.elsewhere, error.broken) == ("context_length_exceeded", True, False)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "completions",
            {"prompt": ["Water flows", "1, 2, 3,"], "n": 2, "logprobs": 2, "seed": 7, "max_tokens": 8},
        ),
        ("completions", {"prompt": "Water flows", "echo": True, "temperature": 0, "max_tokens": 8}),
        ("chat/completions", {"messages": COUNT, "logprobs": True, "top_logprobs": 2, "max_tokens": 8}),
        ("embeddings", {"input": ["Water flows", "downhill"]}),
    ],
)
def test_what_a_remote_gives_is_handed_on_as_it_is(
    server: Server, tmp_path: Path, path: str, fields: dict[str, Any]
) -> None:
    far = {"url": f"{server.url}/v1", "upstream": MODEL, "input_price": 1.0, "output_price": 1.0}
    with routed(tmp_path, {"far": far | {"abilities": ["completions", "logprobs"]}}) as fleet:
        body = {"temperature": 0} | fields
        told = fleet.client.post(f"/v1/{path}", json=body | {"model": "far"}).json()
    direct = httpx.post(f"{server.url}/v1/{path}", json=body | {"model": MODEL}, timeout=60).json()
    for each in (told, direct):
        for name in ("id", "created", "model", "system_fingerprint"):
            each.pop(name, None)
        each["usage"].pop("prompt_tokens_details", None)  # the second finds the prompt cached
    del told["usage"]["headrace"]
    assert told == direct
