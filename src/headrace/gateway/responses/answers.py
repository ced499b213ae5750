"""What clients are sent: a response, its items, and the events of a stream of one."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from headrace.gateway.openai.answers import Usage as ChatUsage
from headrace.gateway.responses.requests import Format, Reasoning, Tool, ToolChoice
from headrace.gateway.route_report import RouteReport

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class InputDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    """Tokens of a request."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int
    headrace: RouteReport | UnsetType = UNSET
    """Of a routed request."""


class OutputText(Struct, tag="output_text"):
    text: str
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)


class ReasoningText(Struct, tag="reasoning_text"):
    text: str


class MessageItem(Struct, tag="message"):
    id: str
    status: Status
    content: list[OutputText]
    role: str = "assistant"


class ReasoningItem(Struct, tag="reasoning"):
    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[Any] = field(default_factory=list)


class CallItem(Struct, tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


Item = MessageItem | ReasoningItem | CallItem


class Reason(Struct):
    reason: str


class Failure(Struct):
    code: str
    message: str


class TextSettings(Struct):
    format: Format


class Response(Struct):
    """An answer; in a stream also one that has only begun."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[Item]
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: Reasoning
    temperature: float
    text: TextSettings
    tool_choice: str | ToolChoice
    tools: list[Tool]
    top_p: float
    user: str | None
    usage: Usage | None = None
    completed_at: int | None = None
    error: Failure | None = None
    incomplete_details: Reason | None = None
    background: bool = False
    previous_response_id: None = None
    store: bool = False
    truncation: str = "disabled"
    object: str = "response"


class Event(Struct):
    """One event of a stream; which fields it has depends on its type."""

    type: str
    sequence_number: int = 0
    response: Response | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: Item | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET


def usage_of(known: ChatUsage, reasoning_tokens: int) -> Usage:
    """The usage in this endpoint's terms."""
    return Usage(
        known.prompt_tokens,
        InputDetails(known.prompt_tokens_details.cached_tokens),
        known.completion_tokens,
        OutputDetails(reasoning_tokens),
        known.total_tokens,
        known.headrace,
    )
