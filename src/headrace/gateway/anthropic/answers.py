"""What clients are sent: messages, and the events of a stream of one."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from headrace.gateway.json_line import encode
from headrace.gateway.openai.answers import Usage as ChatUsage
from headrace.gateway.route_report import RouteReport


class Usage(Struct):
    """Tokens of a request; those of its prompt are the sum of the input fields."""

    input_tokens: int
    """Of the prompt, those that had to be computed."""
    cache_creation_input_tokens: int
    """None is accounted for apart: whatever is computed may be found again."""
    cache_read_input_tokens: int
    output_tokens: int
    headrace: RouteReport | UnsetType = UNSET
    """Of a routed request."""


class TextBlock(Struct, tag="text"):
    text: str


class ThinkingBlock(Struct, tag="thinking"):
    thinking: str
    signature: str = ""
    """Nothing is signed; clients expect the field."""


class ToolUseBlock(Struct, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class Message(Struct, tag="message"):
    """An answer; at the head of a stream it is still empty."""

    id: str
    model: str
    content: list[Block]
    usage: Usage
    stop_reason: str | None = None
    """end_turn, max_tokens, stop_sequence, tool_use or model_context_window_exceeded."""
    stop_sequence: str | None = None
    role: str = "assistant"


class TextDelta(Struct, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, tag="thinking_delta"):
    thinking: str


class InputDelta(Struct, tag="input_json_delta"):
    partial_json: str


class Stopped(Struct):
    stop_reason: str
    stop_sequence: str | None


class MessageStart(Struct, tag="message_start"):
    message: Message


class BlockStart(Struct, tag="content_block_start"):
    index: int
    content_block: Block


class BlockDelta(Struct, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(Struct, tag="content_block_stop"):
    index: int


class MessageDelta(Struct, tag="message_delta"):
    delta: Stopped
    usage: Usage


class MessageStop(Struct, tag="message_stop"):
    pass


class TokenCount(Struct):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


def server_sent_event(event: Event) -> bytes:
    """One event of a stream."""
    name = str(type(event).__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + encode(event) + b"\n\n"


def usage_of(known: ChatUsage) -> Usage:
    """The usage in Anthropic's terms."""
    cached = known.prompt_tokens_details.cached_tokens
    return Usage(known.prompt_tokens - cached, 0, cached, known.completion_tokens, known.headrace)
