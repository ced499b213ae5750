"""litellm against a real server, in each of the dialects that it speaks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a list of prices when imported

import litellm

from system.asking import CODER, FULL, HELLO, KEY, LONG, SIGNAL, SKY, SMALL, Paint, assert_a_signal, poor


@pytest.fixture(scope="module")
def lite(for_clients: str) -> Callable[..., Any]:
    """litellm's completion with this server filled in."""

    def complete(model: str = SMALL, dialect: str = "openai", **fields: Any) -> Any:
        base = f"{for_clients}/v1" if dialect == "openai" else for_clients
        asked: dict[str, Any] = {"api_base": base, "api_key": KEY, "max_retries": 0}
        asked |= {"temperature": 0, "max_tokens": 12}
        return litellm.completion(f"{dialect}/{model}", **asked | fields)

    return complete


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "ollama_chat"])
def test_it_completes_alike_whole_and_in_a_stream(lite: Callable[..., Any], dialect: str) -> None:
    whole = lite(dialect=dialect, messages=HELLO)
    chunks = list(lite(dialect=dialect, messages=HELLO, stream=True, stream_options={"include_usage": True}))
    rebuilt = litellm.stream_chunk_builder(chunks, messages=HELLO)
    for told in (whole, rebuilt):
        assert told.choices[0].finish_reason == whole.choices[0].finish_reason
        assert told.choices[0].message.content == whole.choices[0].message.content
        assert told.usage.prompt_tokens == whole.usage.prompt_tokens
        assert told.usage.completion_tokens == whole.usage.completion_tokens > 0


def test_it_calls_a_tool_alike_whole_and_in_a_stream(lite: Callable[..., Any]) -> None:
    asked = {"messages": HELLO, "tools": [SIGNAL], "tool_choice": "required", "max_tokens": 80}
    whole = lite(CODER, **asked)
    rebuilt = litellm.stream_chunk_builder(list(lite(CODER, **asked, stream=True)))
    called = []
    for told in (whole, rebuilt):
        assert told.choices[0].finish_reason == "tool_calls"
        (call, *_) = told.choices[0].message.tool_calls
        assert call.function.name == "set_signal"
        called.append(call.function.arguments)
    assert called[0] == called[1]
    assert_a_signal(json.loads(called[0]))


def test_it_gives_an_answer_of_a_class(lite: Callable[..., Any]) -> None:
    told = lite(CODER, messages=SKY, response_format=Paint, max_tokens=80)
    Paint.model_validate_json(told.choices[0].message.content)


def test_it_reads_logprobs(lite: Callable[..., Any]) -> None:
    (choice,) = lite(messages=HELLO, logprobs=True, top_logprobs=2).choices
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)


def test_it_reads_embeddings(for_clients: str) -> None:
    told = litellm.embedding(
        f"openai/{SMALL}", input=["The sky is blue.", "Hi"], api_base=f"{for_clients}/v1", api_key=KEY
    )
    assert [math.isclose(math.hypot(*each["embedding"]), 1, abs_tol=1e-3) for each in told.data] == [True] * 2


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": "nothing-of-that-name"}, "NotFoundError"),
        ({"temperature": -1}, "BadRequestError"),
        ({"api_key": "another"}, "AuthenticationError"),
    ],
)
def test_it_maps_errors_to_its_own(lite: Callable[..., Any], fields: dict[str, Any], kind: str) -> None:
    with pytest.raises(getattr(litellm.exceptions, kind)) as error:
        lite(**({"messages": HELLO} | fields))
    assert type(error.value).__name__ == kind  # no subclass that says something else


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
def test_it_knows_a_context_that_is_full(lite: Callable[..., Any], dialect: str, stream: bool) -> None:
    with pytest.raises(litellm.exceptions.ContextWindowExceededError, match=FULL):
        lite(dialect=dialect, messages=LONG, stream=stream)


def test_it_is_told_of_a_rate_that_is_exceeded(lite: Callable[..., Any]) -> None:
    asked = {"messages": HELLO, "api_key": poor("litellm"), "max_tokens": 1}
    lite(**asked)
    with pytest.raises(litellm.exceptions.RateLimitError) as error:
        lite(**asked, stream=True)
    assert 1 <= int(error.value.response.headers["retry-after"]) <= 60
