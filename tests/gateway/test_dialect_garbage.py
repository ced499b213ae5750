"""Garbage in the other dialects: whatever the body, the answer is a refusal or an answer, never a fault."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.running import RunningGateway

PATHS = ["messages", "messages/count_tokens", "responses"]
BODY = '{"model":"fake","max_tokens":2,"max_output_tokens":2,%s}'
BLOCKS = '"messages":[{"role":"user","content":%s}]'


def post(server: RunningGateway, path: str, body: str | bytes) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", content=body, timeout=20)


def check_shape(path: str, answer: httpx.Response) -> None:
    told = answer.json()
    if path == "responses":
        assert set(told["error"]) == {"message", "type", "param", "code"}
    else:
        assert set(told) == {"type", "error"} and set(told["error"]) == {"type", "message"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        BODY % '"messages":1,"input":1',
        BODY % '"messages":[],"input":[]',
        BODY % (BLOCKS % ("[" * 100_000 + "]" * 100_000)),
        BODY % (BLOCKS % ('[{"type":"tool_result","content":' * 5000 + '""' + "}]" * 5000)),
    ],
)
def test_what_is_no_request_is_refused_in_the_dialects_shape(
    server: RunningGateway, path: str, body: str | bytes
) -> None:
    answer = post(server, path, body)
    assert answer.status_code == 400, answer.text
    check_shape(path, answer)


WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "system",
        "tool",
        "text",
        "tool_use",
        "tool_result",
        "thinking",
        "image",
        "input_image",
        "message",
        "function",
        "function_call",
        "function_call_output",
        "reasoning",
        "input_text",
        "c1",
        "f",
        "{}",
    ]
)
NAMES = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "thinking",
        "id",
        "name",
        "input",
        "tool_use_id",
        "is_error",
        "call_id",
        "arguments",
        "output",
        "summary",
        "parameters",
        "input_schema",
        "image_url",
        "source",
    ]
)
LEAVES = WORDS | st.none() | st.booleans() | st.integers(-2, 2)
THINGS: Any = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": WORDS, "content": THINGS},
        optional=dict.fromkeys(("type", "call_id", "name", "arguments", "output", "summary"), THINGS),
    ),
    max_size=3,
)


@settings(max_examples=150)
@given(
    path=st.sampled_from(PATHS),
    turns=TURNS,
    more=st.dictionaries(
        st.sampled_from(["system", "tools", "tool_choice", "thinking", "text", "reasoning", "instructions"]),
        THINGS,
        max_size=2,
    ),
)
def test_no_conversation_makes_a_fault(
    server: RunningGateway, path: str, turns: Any, more: dict[str, Any]
) -> None:
    body = {"model": "fake", "max_tokens": 2, "max_output_tokens": 2, "messages": turns, "input": turns}
    answer = httpx.post(f"{server.url}/v1/{path}", json=body | more, timeout=20)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        check_shape(path, answer)
