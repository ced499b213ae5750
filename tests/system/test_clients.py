"""Clients that people build on, against a real server: what each expects beyond the words of the API."""

from __future__ import annotations

import base64
import math
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a list of prices when imported
pytest.importorskip("litellm")
pytest.importorskip("langchain_openai")
pytest.importorskip("pydantic_ai")

import langchain_openai
import litellm
import pydantic_ai
from pydantic import BaseModel, Field
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from system.test_serve import Server, serving

SMALL, CODER = "smollm2-135m", "qwen2.5-coder-0.5b"
KEY, POOR = "a-key-of-the-tests", "a-key-for-one-request"
KEYS = f"""
[keys.tests]
key = "{KEY}"
[keys.poor]
key = "{POOR}"
requests_per_minute = 1
"""
HELLO: Any = [{"role": "user", "content": "Say hi."}]
SKY: Any = [{"role": "user", "content": "What is the colour of the sky?"}]
SIGNAL: Any = {
    "type": "function",
    "function": {
        "name": "set_signal",
        "description": "Sets the signal's colour.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}, "blinking": {"type": "boolean"}},
            "required": ["colour", "blinking"],
            "additionalProperties": False,
        },
    },
}
GREEDY: Any = {"temperature": 0, "max_tokens": 12}


class Paint(BaseModel):
    """A colour and how sure the answer is: of a bounded length, whatever a model says."""

    colour: Literal["red", "green", "blue"]
    sure: bool
    stars: int = Field(ge=1, le=5)


@pytest.fixture(scope="module")
def server(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model_path(CODER)
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS, encoding="utf-8")
    options = ("--load-on-demand", "--threads", "2", "--cache-tokens", "4096", "--api-keys", str(keys))
    with serving(model_path(SMALL), "--model", SMALL, *options) as server:
        yield server


@pytest.fixture(scope="module")
def base(server: Server) -> str:
    return f"{server.url}/v1"


@pytest.fixture(scope="module")
def client(base: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def lite(base: str) -> Callable[..., Any]:
    """litellm's completion with this server filled in."""

    def complete(model: str = SMALL, **fields: Any) -> Any:
        asked = {"api_base": base, "api_key": KEY, "max_retries": 0} | GREEDY | fields
        return litellm.completion(f"openai/{model}", **asked)

    return complete


@pytest.fixture(scope="module")
def chain(base: str) -> Callable[..., Any]:
    """langchain's chat model with this server filled in."""

    def build(model: str, **fields: Any) -> Any:
        asked = {"base_url": base, "api_key": KEY, "max_retries": 0, "temperature": 0} | fields
        return langchain_openai.ChatOpenAI(model=model, **asked)

    return build


def assert_a_signal(arguments: dict[str, Any]) -> None:
    assert set(arguments) == {"colour", "blinking"}
    assert arguments["colour"] in ("red", "green") and isinstance(arguments["blinking"], bool)


# openai


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


# litellm


def test_litellm_completes_alike_whole_and_in_a_stream(lite: Callable[..., Any]) -> None:
    whole = lite(messages=HELLO)
    chunks = list(lite(messages=HELLO, stream=True, stream_options={"include_usage": True}))
    rebuilt = litellm.stream_chunk_builder(chunks, messages=HELLO)
    for told in (whole, rebuilt):
        assert told.choices[0].finish_reason == whole.choices[0].finish_reason
        assert told.choices[0].message.content == whole.choices[0].message.content
        assert told.usage.prompt_tokens == whole.usage.prompt_tokens
        assert told.usage.completion_tokens == whole.usage.completion_tokens > 0


def test_litellm_calls_a_tool_alike_whole_and_in_a_stream(lite: Callable[..., Any]) -> None:
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


def test_litellm_gives_an_answer_of_a_class(lite: Callable[..., Any]) -> None:
    told = lite(CODER, messages=SKY, response_format=Paint, max_tokens=80)
    Paint.model_validate_json(told.choices[0].message.content)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": "nothing-of-that-name"}, "NotFoundError"),
        ({"temperature": -1}, "BadRequestError"),
        ({"api_key": "another"}, "AuthenticationError"),
    ],
)
def test_litellm_maps_errors_to_its_own(lite: Callable[..., Any], fields: dict[str, Any], kind: str) -> None:
    with pytest.raises(getattr(litellm.exceptions, kind)) as error:
        lite(**({"messages": HELLO} | fields))
    assert type(error.value).__name__ == kind  # no subclass that says something else


def test_litellm_is_told_of_a_rate_that_is_exceeded(lite: Callable[..., Any]) -> None:
    asked = {"messages": HELLO, "api_key": POOR, "max_tokens": 1}
    lite(**asked)
    with pytest.raises(litellm.exceptions.RateLimitError) as error:
        lite(**asked, stream=True)
    assert 1 <= int(error.value.response.headers["retry-after"]) <= 60


# langchain


def test_langchain_answers_alike_whole_and_in_a_stream(chain: Callable[..., Any]) -> None:
    chat = chain(SMALL, max_tokens=12, stream_usage=True)
    whole = chat.invoke("Say hi.")
    pieces = list(chat.stream("Say hi."))
    streamed = sum(pieces[1:], start=pieces[0])
    assert streamed.content == whole.content
    counted = whole.usage_metadata
    assert counted["output_tokens"] > 0
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert streamed.usage_metadata[name] == counted[name]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structures_an_answer(chain: Callable[..., Any], method: str) -> None:
    chat = chain(CODER, max_tokens=80).with_structured_output(Paint, method=method)
    assert isinstance(chat.invoke("What is the colour of the sky?"), Paint)


def test_langchain_binds_tools_and_hands_their_results_back(chain: Callable[..., Any]) -> None:
    def set_signal(colour: Literal["red", "green"], blinking: bool) -> str:
        """Sets the signal's colour."""
        return f"{colour} {blinking}"

    chat = chain(CODER, max_tokens=80)
    asked = ("user", "Say hi.")
    forced = chat.bind_tools([set_signal], tool_choice="any")
    called = forced.invoke([asked])
    pieces = list(forced.stream([asked]))
    for answer in (called, sum(pieces[1:], start=pieces[0])):
        (call, *_) = answer.tool_calls
        assert call["name"] == "set_signal"
        assert_a_signal(call["args"])
    results = [("tool", set_signal(**call["args"]), call["id"]) for call in called.tool_calls]
    messages = [asked, called]
    messages += [{"role": "tool", "content": text, "tool_call_id": id_} for _, text, id_ in results]
    told = chat.bind_tools([set_signal]).invoke(messages)
    assert told.usage_metadata["input_tokens"] > called.usage_metadata["input_tokens"]


# pydantic-ai


@pytest.mark.parametrize("output", [pydantic_ai.NativeOutput, pydantic_ai.ToolOutput])
def test_pydantic_ai_gives_an_answer_of_a_class(base: str, output: Any) -> None:
    model = OpenAIChatModel(CODER, provider=OpenAIProvider(base_url=base, api_key=KEY))
    agent = pydantic_ai.Agent(model, output_type=output(Paint), retries=0)
    told = agent.run_sync(
        "What is the colour of the sky?", model_settings={"temperature": 0, "max_tokens": 80}
    )
    assert isinstance(told.output, Paint)
    assert told.usage.input_tokens > 0
