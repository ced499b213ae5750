"""Pydantic AI's model for OpenAI against a real server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

import pydantic_ai
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from system.asking import CODER, FULL, KEY, LONG_TEXT, SKY_TEXT, SMALL, Paint, poor


@pytest.fixture(scope="module")
def agent(for_clients: str) -> Callable[..., Any]:
    """An agent with this server filled in."""

    def build(model: str = SMALL, key: str = KEY, max_tokens: int = 12, **fields: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=f"{for_clients}/v1", api_key=key, max_retries=0)
        provider = OpenAIProvider(openai_client=client)
        settings = {"temperature": 0, "max_tokens": max_tokens} | fields.pop("settings", {})
        return pydantic_ai.Agent(
            OpenAIChatModel(model, provider=provider), model_settings=settings, retries=0, **fields
        )

    return build


def test_it_answers_alike_whole_and_in_a_stream(agent: Callable[..., Any]) -> None:
    whole = agent().run_sync("Say hi.")
    streamed = agent().run_stream_sync("Say hi.")
    assert streamed.get_output() == whole.output
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 0


@pytest.mark.parametrize("output", [pydantic_ai.NativeOutput, pydantic_ai.ToolOutput])
def test_it_gives_an_answer_of_a_class(agent: Callable[..., Any], output: Any) -> None:
    told = agent(CODER, max_tokens=80, output_type=output(Paint)).run_sync(SKY_TEXT)
    assert isinstance(told.output, Paint)
    assert told.usage.input_tokens > 0


def test_it_runs_a_tool_that_the_model_calls(agent: Callable[..., Any]) -> None:
    asked: list[str] = []

    def get_weather(city: Literal["Paris", "Graz"]) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return "sunny"

    told = agent(CODER, max_tokens=80, tools=[get_weather]).run_sync(
        "What is the weather in Paris? Use the tool."
    )
    assert asked[0] == "Paris"
    assert told.usage.requests >= 2 and isinstance(told.output, str)


def test_it_reads_logprobs(agent: Callable[..., Any]) -> None:
    told = agent(settings={"openai_logprobs": True, "openai_top_logprobs": 2}).run_sync("Say hi.")
    tokens = told.response.provider_details["logprobs"]
    assert "".join(token["token"] for token in tokens) == told.output
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


def test_it_reads_embeddings(for_clients: str) -> None:
    provider = OpenAIProvider(base_url=f"{for_clients}/v1", api_key=KEY)
    embedder = pydantic_ai.Embedder(OpenAIEmbeddingModel(SMALL, provider=provider))
    told = embedder.embed_documents_sync(["The sky is blue.", "Hi"])
    assert [math.isclose(math.hypot(*each), 1, abs_tol=1e-3) for each in told.embeddings] == [True, True]


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "nothing-of-that-name"}, 404, "model_not_found"),
        ({"key": "another"}, 401, "invalid_api_key"),
    ],
)
def test_it_raises_its_own_errors(agent: Callable[..., Any], fields: Any, status: int, code: str) -> None:
    with pytest.raises(ModelHTTPError) as error:
        agent(**fields).run_sync("Say hi.")
    assert error.value.status_code == status and error.value.body["code"] == code  # type: ignore[index]


def test_it_knows_a_context_that_is_full(agent: Callable[..., Any]) -> None:
    kind = getattr(pydantic_ai.exceptions, "ModelContextWindowExceededError", ModelHTTPError)
    with pytest.raises(kind, match=FULL):
        agent().run_sync(LONG_TEXT)


def test_it_is_told_of_a_rate_that_is_exceeded(agent: Callable[..., Any]) -> None:
    hasty = agent(key=poor("pydantic-ai"), max_tokens=1)
    hasty.run_sync("Say hi.")
    with pytest.raises(ModelHTTPError) as error:
        hasty.run_sync("Say hi.")
    assert error.value.status_code == 429
