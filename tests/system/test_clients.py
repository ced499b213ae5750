"""The official clients against a real server: what each expects beyond the words of its API."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import ollama
import openai
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

from system.asking import CODER, FULL, HELLO, KEY, LONG, SKY, SMALL, Paint, poor

GREEDY = {"temperature": 0}
"""For anthropic's client, whose methods know no temperature."""
PAINT: Any = Paint.model_json_schema() | {"additionalProperties": False}


def openai_client(url: str, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def anthropic_client(url: str, key: str = KEY) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


def ollama_client(url: str, key: str = KEY) -> ollama.Client:
    return ollama.Client(url, headers={"Authorization": f"Bearer {key}"})


@pytest.fixture(scope="module")
def client(for_clients: str) -> Iterator[openai.OpenAI]:
    with openai_client(for_clients) as client:
        yield client


@pytest.fixture(scope="module")
def claude(for_clients: str) -> Iterator[anthropic.Anthropic]:
    with anthropic_client(for_clients) as client:
        yield client


# openai


def test_openai_chats_alike_whole_and_in_a_stream(client: openai.OpenAI) -> None:
    asked: Any = {"model": SMALL, "messages": HELLO, "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage and whole.usage
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0


def test_openai_parses_an_answer_into_a_class_whole_and_in_a_stream(client: openai.OpenAI) -> None:
    asked: Any = {"model": CODER, "messages": SKY, "temperature": 0, "max_tokens": 80}
    whole = client.chat.completions.parse(**asked, response_format=Paint)
    with client.chat.completions.stream(**asked, response_format=Paint) as stream:
        streamed = stream.get_final_completion()
    assert isinstance(whole.choices[0].message.parsed, Paint)
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


def test_openai_parses_a_required_call_of_a_tool(client: openai.OpenAI) -> None:
    asked: Any = {"model": CODER, "messages": HELLO, "temperature": 0, "max_tokens": 80}
    tool: Any = openai.pydantic_function_tool(Paint)
    whole = client.chat.completions.parse(**asked, tools=[tool], tool_choice="required")
    with client.chat.completions.stream(**asked, tools=[tool], tool_choice="required") as stream:
        streamed = stream.get_final_completion()
    for told in (whole, streamed):
        assert told.choices[0].finish_reason == "tool_calls"
        calls = told.choices[0].message.tool_calls
        assert calls and all(isinstance(call.function.parsed_arguments, Paint) for call in calls)


def test_openai_parses_a_response_into_a_class(client: openai.OpenAI) -> None:
    told = client.responses.parse(
        model=CODER, input=SKY, text_format=Paint, temperature=0, max_output_tokens=80, store=False
    )
    assert isinstance(told.output_parsed, Paint)


def test_openai_reads_logprobs_of_every_choice(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(
        model=SMALL, messages=HELLO, n=3, seed=1, max_tokens=6, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in told.choices] == [0, 1, 2]
    for choice in told.choices:
        assert choice.logprobs is not None and choice.logprobs.content
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
        for token in choice.logprobs.content:
            first, second = token.top_logprobs
            assert 0 >= first.logprob >= second.logprob and token.logprob <= first.logprob
    assert told.usage is not None and 3 <= told.usage.completion_tokens <= 18


def test_openai_reads_embeddings(client: openai.OpenAI) -> None:
    decoded = client.embeddings.create(model=SMALL, input=["The sky is blue.", "Hi"])  # asks for base64
    plain = client.embeddings.create(model=SMALL, input="Hi", encoding_format="float")
    raw: Any = client.embeddings.create(model=SMALL, input="Hi", encoding_format="base64")
    vector = plain.data[0].embedding
    assert math.isclose(math.hypot(*vector), 1, abs_tol=1e-3)
    assert decoded.data[1].embedding == pytest.approx(vector, abs=1e-6)
    packed = base64.b64decode(raw.data[0].embedding)
    assert struct.unpack(f"<{len(vector)}f", packed) == pytest.approx(vector, abs=1e-6)
    assert decoded.usage.total_tokens > plain.usage.total_tokens > 0


def test_openai_raises_its_own_errors(for_clients: str, client: openai.OpenAI) -> None:
    asked: Any = {"model": SMALL, "messages": HELLO, "max_tokens": 1}
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match=FULL) as full:
        create(**asked | {"messages": LONG}, stream=True)
    assert full.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        create(**asked | {"model": "nothing-of-that-name"})
    with openai_client(for_clients, "another") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(**asked)
    with openai_client(for_clients, poor("openai")) as hasty:
        hasty.chat.completions.create(**asked)
        with pytest.raises(openai.RateLimitError):
            hasty.chat.completions.create(**asked)


# anthropic


def test_anthropic_chats_alike_whole_and_in_a_stream(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": SMALL, "messages": HELLO, "max_tokens": 12, "extra_body": GREEDY}
    whole: Any = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert "".join(block.text for block in streamed.content if block.type == "text") == whole.content[0].text
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0


def test_anthropic_parses_an_answer_into_a_class(claude: anthropic.Anthropic) -> None:
    told = claude.messages.parse(
        model=CODER, messages=SKY, output_format=Paint, max_tokens=80, extra_body=GREEDY
    )
    assert isinstance(told.parsed_output, Paint)


def test_anthropic_raises_its_own_errors(for_clients: str, claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": SMALL, "messages": HELLO, "max_tokens": 1}
    with pytest.raises(anthropic.BadRequestError, match=FULL):
        claude.messages.create(**asked | {"messages": LONG})
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(**asked | {"model": "nothing-of-that-name"})
    with anthropic_client(for_clients, "another") as stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(**asked)
    with anthropic_client(for_clients, poor("anthropic")) as hasty:
        hasty.messages.create(**asked)
        with pytest.raises(anthropic.RateLimitError):
            hasty.messages.create(**asked)


# ollama: what test_ollama.py has not


def test_ollama_gives_an_answer_of_a_schema(for_clients: str) -> None:
    told = ollama_client(for_clients).chat(
        CODER, messages=SKY, format=PAINT, options={"temperature": 0, "num_predict": 80}
    )
    Paint.model_validate_json(told.message.content or "")


def test_ollama_raises_its_own_errors(for_clients: str) -> None:
    def refused(status: int, ask: Callable[[], object]) -> None:
        with pytest.raises(ollama.ResponseError) as error:
            ask()
        assert error.value.status_code == status

    once: Any = {"model": SMALL, "messages": HELLO, "options": {"num_predict": 1}}
    with pytest.raises(ollama.ResponseError, match=FULL):
        ollama_client(for_clients).chat(SMALL, messages=LONG)
    refused(401, lambda: ollama_client(for_clients, "another").chat(**once))
    hasty = ollama_client(for_clients, poor("ollama"))
    hasty.chat(**once)
    refused(429, lambda: hasty.chat(**once))
