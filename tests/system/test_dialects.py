"""Official clients against a real server with a real model: what the dialects add to one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

from system.test_serve import Server, serving

ASK: Any = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
COUNT: Any = [{"role": "user", "content": "Count from 1 to 10."}]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def model(model_path: Callable[[str], Path]) -> Path:
    return model_path("qwen2.5-coder-0.5b")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with serving(model) as server:
        yield server


@pytest.fixture(scope="module")
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def name_of(client: openai.OpenAI) -> str:
    return next(iter(client.models.list())).id


def test_a_real_model_calls_a_tool_for_anthropics_client(
    claude: anthropic.Anthropic, client: openai.OpenAI
) -> None:
    tool: Any = {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": CITY}
    asked: Any = {"model": name_of(client), "messages": ASK, "max_tokens": 80, "tools": [tool]}
    message = claude.messages.create(**asked, extra_body=GREEDY)
    with claude.messages.stream(**asked, extra_body=GREEDY) as stream:
        streamed = stream.get_final_message()
    for told in (message, streamed):
        assert told.stop_reason == "tool_use"
        called = told.content[-1]
        assert called.type == "tool_use" and (called.name, called.input) == ("get_weather", {"city": "Paris"})
    counted = claude.messages.count_tokens(model=asked["model"], messages=ASK, tools=[tool]).input_tokens
    for usage in (message.usage, streamed.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    assert (streamed.usage.cache_read_input_tokens or 0) > 100


def test_a_real_model_calls_a_tool_for_the_responses_endpoint(client: openai.OpenAI) -> None:
    tool: Any = {
        "type": "function",
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": CITY,
        "strict": None,
    }
    asked: Any = {"model": name_of(client), "input": ASK, "tools": [tool], "temperature": 0}
    whole = client.responses.create(**asked, max_output_tokens=80)
    with client.responses.stream(**asked, max_output_tokens=80) as stream:
        streamed = stream.get_final_response()
    for told in (whole, streamed):
        called = told.output[-1]
        assert called.type == "function_call" and called.name == "get_weather"
        assert "Paris" in called.arguments


def test_an_answer_that_was_begun_is_continued(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    begun: Any = [*COUNT, {"role": "assistant", "content": "1 2 3 4"}]
    message = claude.messages.create(model=name_of(client), messages=begun, max_tokens=8, extra_body=GREEDY)
    (text,) = message.content
    assert text.type == "text" and text.text.split()[:2] == ["5", "6"]


def test_the_stop_sequence_of_a_real_answer_is_told(
    claude: anthropic.Anthropic, client: openai.OpenAI
) -> None:
    message = claude.messages.create(
        model=name_of(client), messages=COUNT, max_tokens=80, stop_sequences=["zzz", "4"], extra_body=GREEDY
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "4")
    (text,) = message.content
    assert text.type == "text" and "3" in text.text and "4" not in text.text
