"""How an answer looks at POST /v1/messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.errors import RequestError
from headrace.gateway.answering import Answer, AnswerHead, Call
from headrace.gateway.anthropic.answers import (
    Block,
    Event,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    Stopped,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    server_sent_event,
    usage_of,
)
from headrace.gateway.anthropic.blocks import Blocks, tool_use_id
from headrace.gateway.anthropic.errors import error_json
from headrace.gateway.json_line import encode
from headrace.gateway.openai.answers import Usage
from headrace.models.answer import AnswerPart
from headrace.worker.messages import TokenEvent

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class MessageRenderer:
    """Writes a message, at once or as a stream of events."""

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, head: AnswerHead, max_tokens: int, usage: Callable[[], Usage]):
        self._head = head
        self._max_tokens = max_tokens
        self._usage = usage
        self._blocks = Blocks()
        self._began = False
        self._stopped = Stopped("end_turn", None)

    def whole(self, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        message = self._message(_content(answer))
        stopped = self._why(answer.finish_reason, answer.stop_string)
        message.stop_reason, message.stop_sequence = stopped.stop_reason, stopped.stop_sequence
        return encode(message)

    def piece(self, index: int, parts: Sequence[AnswerPart], event: TokenEvent, reason: str | None) -> bytes:
        events: list[Event] = []
        if not self._began:
            self._began = True
            events.append(MessageStart(self._message([])))
        for part in parts:
            events += self._blocks.add(part)
        if reason is not None:
            events += self._blocks.close()
            self._stopped = self._why(reason, event.stop_string)
        return b"".join(map(server_sent_event, events))

    def end(self) -> bytes:
        last = MessageDelta(self._stopped, usage_of(self._usage()))
        return server_sent_event(last) + server_sent_event(MessageStop())

    def failed(self, error: RequestError) -> bytes:
        return b"event: error\ndata: " + error_json(error) + b"\n\n"

    def _message(self, content: list[Block]) -> Message:
        return Message(self._head.id, self._head.model, content, usage_of(self._usage()))

    def _why(self, reason: str, stop_string: str) -> Stopped:
        if reason == "tool_calls":
            return Stopped("tool_use", None)
        if reason == "length":
            limited = self._usage().completion_tokens >= self._max_tokens
            return Stopped("max_tokens" if limited else "model_context_window_exceeded", None)
        return Stopped("stop_sequence", stop_string) if stop_string else Stopped("end_turn", None)


def _content(answer: Answer) -> list[Block]:
    content: list[Block] = []
    if answer.reasoning:
        content.append(ThinkingBlock(answer.reasoning))
    if answer.text.strip():
        content.append(TextBlock(answer.text))
    return [*content, *map(_tool_use, answer.calls)]


def _tool_use(call: Call) -> ToolUseBlock:
    try:
        arguments = _decode_object(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        arguments = {}  # the answer was cut short within them, as its stop reason tells
    return ToolUseBlock(tool_use_id(), call.name, arguments)
