"""Text completions of a remote: asked in OpenAI's words, and answered as a local model's are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.remotes.upstream import Exchange, Script, openai_answer, openai_usage, refusing
from gateway.routed.fleet import DEAR, FAR_FIRST, Fleet, events, eventually, far, here, routed

ABLE = ["completions", "logprobs"]
PROMPT = "Water flows"


def piece(text: str, index: int = 0, reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
    choice = {"index": index, "text": text, "finish_reason": reason, "logprobs": logprobs}
    return {"id": "cmpl-1", "object": "text_completion", "choices": [choice]}


def completing(*chunks: dict[str, Any], usage: tuple[int, int] = (3, 2)) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        for one in chunks:
            await exchange.event(one)
        await exchange.event(openai_usage(*usage))
        await exchange.event("[DONE]")
        await exchange.end()

    return script


DOWNHILL = completing(piece(" down"), piece("hill.", reason="stop"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A remote of OpenAI's API, and one of Anthropic's."""
    models = {"far": far(DOWNHILL, abilities=ABLE), "claude": far(DOWNHILL, api="anthropic", input_price=9.0)}
    with routed(tmp_path_factory.mktemp("fleet"), models) as fleet:
        yield fleet


def complete(fleet: Fleet, model: str = "far", script: Script = DOWNHILL, **fields: Any) -> httpx.Response:
    if model == "far":
        fleet.upstreams["far"].script = script
    return fleet.client.post(
        "/v1/completions", json={"model": model, "prompt": PROMPT, "max_tokens": 9} | fields
    )


def test_a_completion_is_the_remotes_and_costs_what_its_tokens_do(fleet: Fleet) -> None:
    answer = complete(fleet, temperature=0.5, stop=["\n"])
    exchange = fleet.upstreams["far"].exchanges[-1]
    assert exchange.path == "/v1/completions"
    assert exchange.body == {
        "model": "far",
        "prompt": PROMPT,
        "max_tokens": 9,
        "temperature": 0.5,
        "stop": ["\n"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    told = answer.json()
    assert (told["object"], told["model"]) == ("text_completion", "far")
    assert told["choices"] == [{"index": 0, "text": " downhill.", "finish_reason": "stop", "logprobs": None}]
    assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (3, 2)
    assert told["usage"]["headrace"]["cost"] == pytest.approx(5e-6)
    assert answer.headers["x-headrace-cost"] == "0.000005000"
    eventually(lambda: fleet.spent()[1] == 0)
    assert fleet.decisions()[-1]["cost"] == 5000


def test_a_completion_streams(fleet: Fleet) -> None:
    answer = complete(fleet, stream=True, stream_options={"include_usage": True})
    told = events(answer)
    assert "".join(choice["text"] for each in told for choice in each["choices"]) == " downhill."
    assert told[-1]["usage"]["completion_tokens"] == 2
    assert answer.text.endswith("data: [DONE]\n\n")


def test_several_prompts_have_several_choices_each(fleet: Fleet) -> None:
    script = completing(*(piece(f"{i}", i, "length") for i in (2, 0, 3, 1)), usage=(6, 4))
    answer = complete(fleet, script=script, prompt=["a", "b"], n=2, echo=True)
    asked = fleet.upstreams["far"].exchanges[-1].body
    assert (asked["prompt"], asked["n"], "echo" in asked) == (["a", "b"], 2, False)
    assert [each["text"] for each in answer.json()["choices"]] == ["a0", "a1", "b2", "b3"]
    assert complete(fleet, script=script, prompt=[["a"]]).status_code == 400


def test_token_ids_are_the_remotes_own(fleet: Fleet) -> None:
    assert complete(fleet, prompt=[7, 8]).json()["choices"][0]["text"] == " downhill."
    assert fleet.upstreams["far"].exchanges[-1].body["prompt"] == [7, 8]


def test_logprobs_come_as_parallel_lists(fleet: Fleet) -> None:
    lists = {"tokens": [" down", "hill."], "token_logprobs": [-0.5, -0.25], "top_logprobs": [{" up": -1}, {}]}
    answer = complete(fleet, script=completing(piece(" downhill.", 0, "stop", lists)), logprobs=1)
    assert fleet.upstreams["far"].exchanges[-1].body["logprobs"] == 1
    assert answer.json()["choices"][0]["logprobs"] == lists | {"text_offset": [0, 5]}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"echo": True, "prompt": [1, 2]}, "echo"),
        ({"echo": True, "max_tokens": 0}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"min_p": 0.5}, "min_p"),
    ],
)
def test_what_a_remote_has_no_words_for_is_refused_by_name(
    fleet: Fleet, fields: dict[str, Any], named: str
) -> None:
    error = complete(fleet, **fields)
    assert (error.status_code, error.json()["error"]["param"]) == (400, named)


def test_anthropics_api_has_none(fleet: Fleet) -> None:
    refused = complete(fleet, "claude")
    assert refused.status_code == 400
    assert "takes chats only" in refused.json()["error"]["message"]
    assert not fleet.upstreams["claude"].exchanges


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (refusing(429, "slow down", retry_after="0"), 429, "rate_limit_exceeded"),
        (refusing(400, "too many tokens"), 400, "context_length_exceeded"),
        (refusing(401), 503, "remote_refused"),
        (completing({"choices": [{"index": 0, "text": 7}]}), 503, "remote_garbage"),
        (completing(piece("?", 5)), 503, "remote_garbage"),
    ],
)
def test_errors_are_told_as_those_of_chats(tmp_path: Path, script: Script, status: int, code: str) -> None:
    with routed(tmp_path, {"far": far(script)}) as fleet:
        error = complete(fleet, script=script)
        assert (error.status_code, error.json()["error"]["code"]) == (status, code)


def test_a_remote_that_only_chats_says_so_and_is_not_held_to_be_broken(tmp_path: Path) -> None:
    with routed(tmp_path, {"far": far(openai_answer())}) as fleet:
        for _ in range(6):
            error = complete(fleet, script=refusing(404, "This is a chat model"))
            assert (error.status_code, error.json()["error"]["code"]) == (400, "unsupported_value")
            assert "takes chats only" in error.json()["error"]["message"]
        assert fleet.metric("headrace_route_circuit_open", model="far") == 0


@pytest.mark.parametrize(("abilities", "answered"), [([], "near"), (["completions"], "far")])
def test_a_policy_sends_completions_to_remotes_that_are_said_to_serve_them(
    tmp_path: Path, abilities: list[str], answered: str
) -> None:
    models = {"near": here(cost_per_hour=DEAR), "far": far(DOWNHILL, abilities=abilities)}
    with routed(tmp_path, models, policies=FAR_FIRST) as fleet:
        answer = complete(fleet, "auto")
        assert (answer.status_code, answer.headers["x-headrace-model"]) == (200, answered)
        if answered == "far":
            fleet.upstreams["far"].script = refusing(500)
            assert complete(fleet, "auto").headers["x-headrace-attempts"] == "far,near"
