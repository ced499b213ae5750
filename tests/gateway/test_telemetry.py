"""A request is one span, with figures by the conventions for generative AI and no word of its text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.running import RunningGateway, running

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from headrace.gateway.telemetry import Telemetry

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[RunningGateway, InMemorySpanExporter, Telemetry]]:
    exporter = InMemorySpanExporter()
    telemetry = Telemetry(exporter=exporter)
    with running(cached_tokens=2) as server:
        server.gateway.observers = [telemetry.observe]
        yield server, exporter, telemetry
    telemetry.close()


def span_of(traced: tuple[RunningGateway, InMemorySpanExporter, Telemetry]) -> Any:
    """The only span since the last call."""
    _, exporter, telemetry = traced
    deadline = time.monotonic() + 5
    while not exporter.get_finished_spans():
        assert time.monotonic() < deadline
        telemetry._provider.force_flush()
    (span,) = exporter.get_finished_spans()
    exporter.clear()
    return span


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span(
    traced: tuple[RunningGateway, InMemorySpanExporter, Telemetry], stream: bool
) -> None:
    server = traced[0]
    server.complete(prompt="secret", max_tokens=5, temperature=0.5, stream=stream)
    span = span_of(traced)
    assert (span.name, span.kind) == ("text_completion fake", SpanKind.SERVER)
    wanted = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "fake",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 6,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.finish_reasons": ("length",),
        "http.response.status_code": 200,
    }
    assert {name: span.attributes.get(name) for name in wanted} == wanted
    assert span.attributes["gen_ai.response.id"].startswith("cmpl-")
    (event,) = span.events
    assert event.name == "first_token" and span.start_time <= event.timestamp <= span.end_time
    assert "secret" not in span.to_json()


def test_a_span_belongs_to_the_clients_trace(
    traced: tuple[RunningGateway, InMemorySpanExporter, Telemetry],
) -> None:
    import httpx

    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    httpx.post(f"{traced[0].url}/v1/chat/completions", json=body, headers=headers)
    span = span_of(traced)
    assert span.name == "chat fake"
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"


def test_a_refusal_is_a_span_too(traced: tuple[RunningGateway, InMemorySpanExporter, Telemetry]) -> None:
    traced[0].complete(model="unheard-of")
    span = span_of(traced)
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == ("404", 404)
    assert "unheard-of" not in span.to_json()
