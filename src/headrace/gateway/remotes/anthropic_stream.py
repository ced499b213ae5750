"""What Anthropic's API streams: events about a message and its blocks."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from headrace.gateway.answering import Piece
from headrace.gateway.remotes.errors import garbage
from headrace.gateway.remotes.parts import Parts
from headrace.gateway.remotes.refusals import Told, in_stream
from headrace.gateway.remotes.secret import Secret
from headrace.gateway.remotes.tally import Reported

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class _Usage(Struct):
    input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_read_input_tokens: Any = None
    output_tokens: Any = None


class _Message(Struct):
    usage: Any = None
    """Looked at apart, as in the end: a wrong one spoils no answer."""


class _Block(Struct):
    type: str
    text: str | None = None
    thinking: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class _Delta(Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Event(Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode
_encode = msgspec.json.Encoder().encode


class AnthropicStream:
    """Reads one answer. `take` raises RemoteError for what the API does not know, and for errors told."""

    def __init__(self, name: str, parts: Parts, secret: Secret):
        self._name = name
        self._parts = parts
        self._secret = secret
        self.done = False
        """The stream said that it has ended."""
        self._usage: dict[str, Any] = {}
        self._thought = False
        """There was thinking, of which the API counts more than it sends."""

    def take(self, data: bytes | bytearray) -> list[Piece]:
        """What an event adds."""
        try:
            event = _decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise garbage(self._name, "an event that belongs to no message") from None
        match event.type:
            case "content_block_delta" if event.delta is not None:
                return self._delta(event.index, event.delta)
            case "content_block_start" if event.content_block is not None:
                return self._block(event.index, event.content_block)
            case "message_start" if event.message is not None:
                self._note(event.message.usage)
            case "message_delta":
                self._note(event.usage)
                if event.delta is not None and event.delta.stop_reason is not None:
                    reason = _REASONS.get(event.delta.stop_reason, "stop")
                    return [self._parts.end(0, reason, event.delta.stop_sequence or "")]
            case "message_stop":
                self.done = True
            case "error":
                raise in_stream(self._name, Told.of(event.error).scrubbed(self._secret))
        return []  # pings, ends of blocks, and what the API may add some day

    def reported(self) -> Reported | None:
        """The usage, where the remote has told it."""
        if not self._usage:
            return None
        try:
            usage = msgspec.convert(self._usage, _Usage)
            cached = usage.cache_read_input_tokens or 0
            prompt = (usage.input_tokens or 0) + cached + (usage.cache_creation_input_tokens or 0)
        except (msgspec.ValidationError, TypeError):
            return None
        return Reported(prompt, cached, usage.output_tokens, usage.output_tokens if self._thought else 0)

    def _note(self, usage: object) -> None:
        """Later figures replace those before."""
        if isinstance(usage, dict):
            self._usage.update({name: value for name, value in usage.items() if value is not None})

    def _block(self, index: int, block: _Block) -> list[Piece]:
        if block.type == "tool_use":
            begun = [self._parts.call(0, index, block.name or "")]
            if block.input:
                begun.append(self._parts.arguments(0, index, _encode(block.input).decode()))
            return begun
        if block.type in ("thinking", "redacted_thinking"):
            self._thought = True
        return self._texts(block.text, block.thinking)

    def _delta(self, index: int, delta: _Delta) -> list[Piece]:
        if delta.partial_json and self._parts.knows_call(0, index):
            return [self._parts.arguments(0, index, delta.partial_json)]
        return self._texts(delta.text, delta.thinking)

    def _texts(self, text: str | None, thinking: str | None) -> list[Piece]:
        pieces = [self._parts.reasoning(0, thinking)] if thinking else []
        return [*pieces, self._parts.text(0, text)] if text else pieces
