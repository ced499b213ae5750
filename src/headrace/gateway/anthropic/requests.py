"""What clients may send to Anthropic's endpoints, checked while it is decoded.

Fields that change nothing in the answer (`metadata`, `service_tier`, `cache_control`, …) are ignored; what
would change it but is not served is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headrace.routing.wants import WantsBody

_Count = Annotated[int, Meta(ge=1)]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_StopString = Annotated[str, Meta(min_length=1, max_length=1024)]


class ImageSource(Struct):
    """Where an image comes from: held as base64, or at a URL."""

    type: str | None = None
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(Struct):
    """A piece of a message; which fields it has depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: _Name | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    source: ImageSource | None = None


class Message(Struct):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Struct):
    """A tool that the model may use."""

    name: _Name
    type: str | None = None
    """Those of Anthropic's own servers are not served."""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Struct):
    """Whether a tool must be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: _Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: _Count | None = None
    """Handed to the chat template as `thinking_budget`."""


class OutputFormat(Struct):
    """What the answer must look like."""

    type: Literal["json_schema"]
    schema: dict[str, Any] | bool


class OutputConfig(Struct):
    """How much effort is put into the answer, and its form."""

    effort: str | None = None
    """Handed to the chat template as `reasoning_effort`."""
    format: OutputFormat | None = None


class Conversation(Struct, kw_only=True):
    """What the prompt is made of."""

    model: _Name
    messages: Annotated[list[Message], Meta(min_length=1)]
    system: str | list[Block] | None = None
    tools: Annotated[list[Tool], Meta(max_length=1024)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables for the chat template; not Anthropic's."""


class CountRequest(Conversation, kw_only=True):
    """POST /v1/messages/count_tokens"""


class MessagesRequest(Conversation, kw_only=True):
    """POST /v1/messages"""

    max_tokens: _Count
    stream: bool | None = None
    headrace: WantsBody | None = None
    """What is asked of the route; as on the chat endpoint."""
    stop_sequences: Annotated[list[_StopString], Meta(max_length=16)] | None = None
    temperature: _Unit | None = None
    top_p: _Unit | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    # What is not Anthropic's: as on the chat endpoint.
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    min_p: _Unit | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
