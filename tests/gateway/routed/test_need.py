"""What a request needs, told before any model is asked: nothing that may have to be paid is left out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.routed.need import need_of
from headrace.gateway.routed.prompt_length import PromptLength

LONG = "很长" * 1000
CALL = {"id": "1", "function": {"name": "look", "arguments": LONG}}
FUNCTION = {"name": "look", "description": LONG}
FORM = {"type": "json_schema", "json_schema": {"name": "form", "schema": {"const": LONG}}}


def saying(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant"} | fields]}


@pytest.mark.parametrize(
    "fields",
    [
        saying(content=LONG),
        saying(content=[{"type": "text", "text": LONG}]),
        saying(content=[{"type": "refusal", "refusal": LONG}]),
        saying(tool_calls=[CALL]),
        saying(content="So", reasoning_content=LONG),
        saying(content="So") | {"tools": [{"type": "function", "function": FUNCTION}]},
        saying(content="So") | {"response_format": FORM},
    ],
)
def test_every_part_counts_as_a_token_for_each_of_its_bytes(fields: dict[str, Any]) -> None:
    request = msgspec.convert({"model": "far"} | fields, ChatRequest)
    assert PromptLength().most(need_of(request)) > len(LONG.encode())
