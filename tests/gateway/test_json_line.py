"""Text that some readers break lines at reaches them in one piece, from every endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ollama import Client

from gateway.running import RunningGateway, running
from headrace.gateway.batches.lines import RequestLine, answered, not_answered
from headrace.gateway.json_line import encode

ENDS = "one\x85two\u2028three\u2029four\x0bfive\x0csix\x1c\x1d\x1eseven\r\neight"
"""At each of these str.splitlines ends a line."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningGateway]:
    with running(answer=ENDS) as server:
        yield server


def test_no_end_of_line_is_left_and_no_value_changes() -> None:
    value = {ENDS: [ENDS, "é€\U0001f600\u2027\u202a\x84\x86", ENDS.encode().decode("latin-1")]}
    data = encode(value)
    assert len(data.decode().splitlines()) == 1
    assert json.loads(data) == value


CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
RESPONSES = {"model": "fake", "input": "Hi", "max_output_tokens": 100}


def told(server: RunningGateway, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What httpx, which ends lines as str.splitlines does, makes of the stream's events."""
    with httpx.stream("POST", f"{server.url}{path}", json=body | {"stream": True}, timeout=10) as answer:
        lines = [line for line in answer.iter_lines() if line and not line.startswith("event: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def test_a_chat_stream_is_read_line_by_line(server: RunningGateway) -> None:
    chunks = told(server, "/v1/chat/completions", CHAT)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == ENDS


def test_a_text_stream_is_read_line_by_line(server: RunningGateway) -> None:
    chunks = told(server, "/v1/completions", {"model": "fake", "prompt": "Hi", "max_tokens": 100})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == ENDS


def test_a_stream_of_anthropics_is_read_line_by_line(server: RunningGateway) -> None:
    events = told(server, "/v1/messages", CHAT)
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == ENDS


def test_a_stream_of_responses_is_read_line_by_line(server: RunningGateway) -> None:
    events = told(server, "/v1/responses", RESPONSES)
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == ENDS


def test_ollamas_client_reads_its_stream(server: RunningGateway) -> None:
    parts = Client(server.url).chat("fake", CHAT["messages"], stream=True)
    assert "".join(part.message.content or "" for part in parts) == ENDS


def test_results_of_a_batch_are_read_line_by_line(tmp_path: Path) -> None:
    request = RequestLine(custom_id=ENDS, method="POST", url="/v1/chat/completions", body={})
    lines = [
        answered(request, 200, json.dumps({"text": ENDS}, ensure_ascii=False).encode()),
        answered(request, 500, ENDS.encode()),
        not_answered(ENDS, "x", ENDS),
    ]
    read = [json.loads(line) for line in b"".join(lines).decode().splitlines()]
    assert [line["custom_id"] for line in read] == [ENDS] * 3
    assert read[0]["response"]["body"] == {"text": ENDS}
    assert read[1]["response"]["body"] == ENDS
    assert read[2]["error"]["message"] == ENDS
