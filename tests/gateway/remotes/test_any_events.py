"""Whatever JSON a remote sends: pieces, or an error of ours; and usage that can be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.remotes.asking import NAME
from headrace.gateway.answering import Answer
from headrace.gateway.openai.logprobs import CompletionLogprobsOf, chat_logprobs
from headrace.gateway.remotes.anthropic_stream import AnthropicStream
from headrace.gateway.remotes.errors import RemoteError
from headrace.gateway.remotes.logprobs import Vocabulary
from headrace.gateway.remotes.openai_stream import OpenAIStream
from headrace.gateway.remotes.parts import Parts
from headrace.gateway.remotes.run import Stream
from headrace.gateway.remotes.secret import Secret
from headrace.gateway.remotes.tally import Asked, Tally

WORDS = st.sampled_from(
    [
        "choices", "delta", "content", "index", "finish_reason", "tool_calls", "function", "name",
        "arguments", "id", "usage", "prompt_tokens", "completion_tokens", "error", "message",
        "reasoning_content", "prompt_tokens_details", "cached_tokens", "stop_reason", "text",
        "thinking", "partial_json", "input", "content_block", "input_tokens", "output_tokens",
        "cache_read_input_tokens",
    ]
)  # fmt: skip
VALUES = st.sampled_from(
    [
        "text_delta", "tool_use", "input_json_delta", "look", "stop", "end_turn", "", "\ud800",
        0, 1, -1, 2**63, 10**30, 1.5, 1e999, True, None,
    ]
)  # fmt: skip
TYPES = st.sampled_from(
    ["message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop", "error"]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(WORDS, inner, max_size=5)


JSON = st.recursive(VALUES, lambda inner: objects(inner) | st.lists(inner, max_size=3), max_leaves=12)
TOKENS = st.fixed_dictionaries(
    {"token": st.sampled_from(["a", "\ud800", "\N{GREEK SMALL LETTER MU}"]), "logprob": VALUES},
    optional={"bytes": st.lists(st.integers(-1, 256), max_size=2), "top_logprobs": JSON},
)
LOGPROBS = JSON | st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(TOKENS, max_size=2),
        "tokens": st.lists(st.sampled_from(["a", "\ud800"]), max_size=3),
        "token_logprobs": st.lists(st.sampled_from([-1, 7, None, -1e308]), max_size=3),
        "top_logprobs": st.lists(objects(st.floats(-9, 1)), max_size=3),
    },
)
OPENAI = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "index": st.sampled_from([0, 1, 2, -1]),
                    "delta": objects(VALUES)
                    | st.fixed_dictionaries({"tool_calls": st.lists(objects(JSON), max_size=2)}),
                    "text": st.sampled_from(["Water", "", 7]),
                    "logprobs": LOGPROBS,
                    "finish_reason": VALUES,
                },
            ),
            max_size=3,
        ),
        "usage": JSON,
    },
)
ANTHROPIC = st.builds(
    lambda kind, rest: rest | {"type": kind},
    TYPES,
    st.fixed_dictionaries(
        {},
        optional={
            "index": st.integers(-1, 2),
            "delta": objects(VALUES),
            "content_block": objects(JSON).map(lambda block: block | {"type": "tool_use"}),
            "message": objects(JSON),
            "usage": JSON,
        },
    ),
)


def told(stream: Stream, parts: Parts, events: list[Any]) -> None:
    answers = [Answer() for _ in range(2)]
    for event in events:
        data = json.dumps(event).encode()
        try:
            pieces = stream.take(data)
        except RemoteError:
            break
        for index, came, token, reason in pieces:
            answers[index].add(came, token)
            if parts.vocabulary is not None:
                chat_logprobs([token], parts.vocabulary.token_bytes)
                CompletionLogprobsOf(parts.vocabulary.token_bytes).of([token])
                assert all(chosen <= 0 for chosen, *_ in token.logprobs)
            assert reason in (None, "stop", "length", "tool_calls", "content_filter")
    for answer in answers:
        json.dumps(vars_of(answer)).encode()
        (answer.text + answer.reasoning).encode()
    tally = Tally(Asked(size=100, images=0, choices=2, most_tokens=50, context_length=None), parts)
    tally.reported = stream.reported()
    usage = tally.usage()
    assert 1 <= usage.prompt_tokens <= 10_000 and 0 <= usage.completion_tokens <= 10_000
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


def vars_of(answer: Answer) -> list[str]:
    return [answer.text, answer.reasoning, *(call.name + call.arguments for call in answer.calls)]


@given(st.lists(OPENAI | JSON, max_size=5), st.booleans())
def test_no_chunk_breaks_an_answer(events: list[Any], with_logprobs: bool) -> None:
    parts = Parts(NAME, "1", 2, 50, Vocabulary() if with_logprobs else None)
    told(OpenAIStream(NAME, parts, Secret(NAME, None)), parts, events)


@given(st.lists(ANTHROPIC | JSON, max_size=5))
def test_no_event_breaks_an_answer(events: list[Any]) -> None:
    parts = Parts(NAME, "1", 1, 50)
    told(AnthropicStream(NAME, parts, Secret(NAME, None)), parts, events)


@pytest.mark.parametrize(
    "data", [b'{"choices":[{"delta":{"content":"\\ud800"}}]}', b'{"usage":NaN}', b"\x00"]
)
def test_what_is_no_json_is_garbage(data: bytes) -> None:
    parts = Parts(NAME, "1", 1, 50)
    with pytest.raises(RemoteError):
        OpenAIStream(NAME, parts, Secret(NAME, None)).take(data)
