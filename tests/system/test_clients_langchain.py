"""LangChain's classes for OpenAI against a real server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

import langchain_openai
from langchain_core.exceptions import ContextOverflowError

from system.asking import CODER, FULL, KEY, LONG_TEXT, SKY_TEXT, SMALL, Paint, assert_a_signal, poor


@pytest.fixture(scope="module")
def chain(for_clients: str) -> Callable[..., Any]:
    """langchain's chat model with this server filled in."""

    def build(model: str = SMALL, **fields: Any) -> Any:
        asked = {"base_url": f"{for_clients}/v1", "api_key": KEY, "max_retries": 0, "temperature": 0}
        return langchain_openai.ChatOpenAI(model=model, **asked | {"max_tokens": 12} | fields)

    return build


def test_it_answers_alike_whole_and_in_a_stream(chain: Callable[..., Any]) -> None:
    chat = chain(stream_usage=True)
    whole = chat.invoke("Say hi.")
    pieces = list(chat.stream("Say hi."))
    streamed = sum(pieces[1:], start=pieces[0])
    assert streamed.content == whole.content
    counted = whole.usage_metadata
    assert counted["output_tokens"] > 0
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert streamed.usage_metadata[name] == counted[name]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_it_structures_an_answer(chain: Callable[..., Any], method: str) -> None:
    chat = chain(CODER, max_tokens=80).with_structured_output(Paint, method=method)
    assert isinstance(chat.invoke(SKY_TEXT), Paint)


def test_it_binds_tools_and_hands_their_results_back(chain: Callable[..., Any]) -> None:
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


def test_it_reads_logprobs(chain: Callable[..., Any]) -> None:
    told = chain(logprobs=True, top_logprobs=2).invoke("Say hi.")
    tokens = told.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == told.content
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


def test_it_reads_embeddings(for_clients: str) -> None:
    embeddings = langchain_openai.OpenAIEmbeddings(
        model=SMALL,
        base_url=f"{for_clients}/v1",
        api_key=KEY,  # type: ignore[arg-type]
        check_embedding_ctx_length=False,  # it would cut texts into tokens of its own model
    )
    vectors = embeddings.embed_documents(["The sky is blue.", "Hi"])
    assert [math.isclose(math.hypot(*vector), 1, abs_tol=1e-3) for vector in vectors] == [True, True]
    assert embeddings.embed_query("Hi") == pytest.approx(vectors[1], abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": "nothing-of-that-name"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"api_key": "another"}, openai.AuthenticationError),
    ],
)
def test_it_raises_the_errors_of_openai(chain: Callable[..., Any], fields: Any, kind: Any) -> None:
    with pytest.raises(kind):
        chain(**fields).invoke("Say hi.")


def test_it_knows_a_context_that_is_full(chain: Callable[..., Any]) -> None:
    with pytest.raises(ContextOverflowError, match=FULL):
        chain().invoke(LONG_TEXT)
    with pytest.raises(ContextOverflowError, match=FULL):
        list(chain().stream(LONG_TEXT))


def test_it_is_told_of_a_rate_that_is_exceeded(chain: Callable[..., Any]) -> None:
    hasty = chain(api_key=poor("langchain"), max_tokens=1)
    hasty.invoke("Say hi.")
    with pytest.raises(openai.RateLimitError):
        hasty.invoke("Say hi.")
