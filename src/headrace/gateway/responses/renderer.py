"""How an answer looks at POST /v1/responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.gateway.answering import Answer, AnswerHead
from headrace.gateway.json_line import encode
from headrace.gateway.openai.answers import Usage
from headrace.gateway.responses.answers import (
    Event,
    Failure,
    Reason,
    Response,
    TextSettings,
    usage_of,
)
from headrace.gateway.responses.items import Items
from headrace.gateway.responses.requests import Format, Reasoning, ResponsesRequest
from headrace.models.answer import AnswerPart
from headrace.models.answer import Reasoning as ReasoningPart
from headrace.worker.messages import TokenEvent


class ResponseRenderer:
    """Writes a response, at once or as a stream of events."""

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(
        self,
        head: AnswerHead,
        body: ResponsesRequest,
        sampling: SamplingParams,
        usage: Callable[[], Usage],
    ):
        self._usage = usage
        self._events: list[bytes] = []
        self._number = 0
        self._reasoning_tokens = 0
        self._items = Items(self._tell)
        self._response = _begun(head, body, sampling)
        self._response.output = self._items.output

    def whole(self, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        for parts, event in zip(answer.parts, answer.events, strict=True):
            self._take(parts, event)
        self._finish(answer.finish_reason)
        return encode(self._settled())

    def piece(self, index: int, parts: Sequence[AnswerPart], event: TokenEvent, reason: str | None) -> bytes:
        if not self._number:
            self._tell(Event("response.created", response=self._response))
            self._tell(Event("response.in_progress", response=self._response))
        self._take(parts, event)
        if reason is not None:
            self._finish(reason)
        return self._told()

    def end(self) -> bytes:
        response = self._settled()
        self._tell(Event(f"response.{response.status}", response=response))
        return self._told()

    def failed(self, error: RequestError) -> bytes:
        self._items.break_off()
        self._response.status = "failed"
        self._response.error = Failure("server_error", str(error))
        self._tell(Event("response.failed", response=self._response))
        return self._told()

    def _take(self, parts: Sequence[AnswerPart], event: TokenEvent) -> None:
        if parts and all(isinstance(part, ReasoningPart) for part in parts):
            self._reasoning_tokens += len(event.token_ids)
        for part in parts:
            self._items.add(part)

    def _finish(self, reason: str) -> None:
        response = self._response
        if reason == "length":
            response.status = "incomplete"
            response.incomplete_details = Reason("max_output_tokens")
        else:
            response.status = "completed"
            response.completed_at = int(time.time())
        self._items.close(response.status)

    def _settled(self) -> Response:
        self._response.usage = usage_of(self._usage(), self._reasoning_tokens)
        return self._response

    def _tell(self, event: Event) -> None:
        event.sequence_number = self._number
        self._number += 1
        self._events.append(b"event: " + event.type.encode() + b"\ndata: " + encode(event) + b"\n\n")

    def _told(self) -> bytes:
        told = b"".join(self._events)
        self._events.clear()
        return told


def _begun(head: AnswerHead, body: ResponsesRequest, sampling: SamplingParams) -> Response:
    """The response before its first item: who answers, and what was asked for."""
    return Response(
        id=head.id,
        created_at=head.created,
        model=head.model,
        status="in_progress",
        output=[],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=body.reasoning or Reasoning(),
        temperature=sampling.temperature,
        text=TextSettings((body.text and body.text.format) or Format("text")),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_p=sampling.top_p,
        user=body.user,
    )
