"""OpenTelemetry traces: a span for each request, by the semantic conventions for generative AI.

Needs the extra `otel`. A span is made when its request has ended, from what is known then, so tracing costs
a stream nothing. No span holds a word of what was asked or answered.
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.gateway.body import CLIENT_GONE
from headrace.gateway.request_log import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_OPERATIONS = {
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/api/embed": "embeddings",
}
"""By path; all others chat."""
_ASKED = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "n": "choice.count",
}
"""Fields of a request, and their names behind gen_ai.request."""


class Telemetry:
    """Makes spans and sends them to a collector, from a thread of its own. Its `observe` is an observer."""

    def __init__(self, endpoint: str | None = None, exporter: SpanExporter | None = None):
        """`endpoint` is a collector's URL, such as http://localhost:4318 (OTLP over HTTP).

        None leaves it to OpenTelemetry's own variables. Raises ConfigError where the extra is missing.
        """
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if exporter is None:
                exporter = _otlp(endpoint)
        except ImportError as error:
            raise ConfigError(
                f"traces need the extra otel ({error.name} is missing): pip install 'headrace[otel]'"
            ) from None
        self._provider = TracerProvider(resource=Resource.create({"service.name": "headrace"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("headrace")

    def observe(self, record: RequestRecord, status: int) -> None:
        """Makes the span of a request that has ended; none for one that nobody known has sent."""
        if status == 401:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in record.scope.get("headers", ())
            if name in (b"traceparent", b"tracestate")
        }
        figures = record.figures(status)
        end = time.time_ns()
        start = end - int(figures["duration"] * 1e9)
        operation = _OPERATIONS.get(record.path, "chat")
        span = self._tracer.start_span(
            f"{operation} {record.model}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            start_time=start,
            attributes=_attributes(record, operation, status, figures),
        )
        if figures["queue"] is not None:
            span.set_attribute("headrace.queue_seconds", figures["queue"])
        if figures["ttft"] is not None:
            span.set_attribute("headrace.time_to_first_token_seconds", figures["ttft"])
            span.add_event("first_token", timestamp=start + int(figures["ttft"] * 1e9))
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()


def _otlp(endpoint: str | None) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    if endpoint is None:
        return OTLPSpanExporter()
    return OTLPSpanExporter(endpoint=endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces")


def _attributes(
    record: RequestRecord, operation: str, status: int, figures: dict[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "headrace",
        "http.response.status_code": status,
        "url.path": record.path,
        "headrace.request_id": record.request_id,
        "headrace.key": record.caller,
    }
    if status >= 400:
        found["error.type"] = "client_gone" if status == CLIENT_GONE else str(status)
    if record.model != "-":
        found["gen_ai.request.model"] = found["gen_ai.response.model"] = record.model
    if record.policy != "-":
        found["headrace.policy"] = record.policy
    for name, attribute in _ASKED.items():
        if (value := getattr(record.asked, name, None)) is not None:
            found[f"gen_ai.request.{attribute}"] = value
    if record.run is not None:
        found |= {
            "gen_ai.response.id": record.id,
            "gen_ai.usage.input_tokens": figures["prompt"],
            "gen_ai.usage.output_tokens": figures["output"],
            "gen_ai.usage.cache_read.input_tokens": figures["cached"],
        }
        if record.run.finish_reasons:
            found["gen_ai.response.finish_reasons"] = record.run.finish_reasons
    return found
