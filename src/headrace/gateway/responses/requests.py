"""What clients may send to POST /v1/responses, checked while it is decoded.

As on the chat endpoint, fields that change nothing in the answer are ignored, and what would change it but
is not served is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from headrace.routing.wants import WantsBody

_Count = Annotated[int, Meta(ge=1)]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Part(Struct):
    """A piece of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


class Item(Struct):
    """A piece of the conversation; which fields it has depends on its type."""

    type: str = "message"
    """message, function_call, function_call_output or reasoning."""
    role: str | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    call_id: str | None = None
    name: _Name | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Tool(Struct):
    """A tool that the model may use; its fields depend on its type."""

    type: str
    name: _Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Struct):
    """The choice of one tool."""

    type: str
    name: _Name | None = None


class Format(Struct):
    """What the text must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct):
    """How the text is written."""

    format: Format | None = None


class Reasoning(Struct):
    """How much the model thinks."""

    effort: str | None = None
    """Handed to the chat template, as `reasoning_effort` of a chat request is."""
    summary: str | None = None
    """Ignored: the reasoning itself is given."""


class Unserved(Struct, kw_only=True):
    """Fields that mean something but are not served; only the values in NEUTRAL are let through."""

    background: Any = None
    conversation: Any = None
    previous_response_id: Any = None
    prompt: Any = None
    top_logprobs: Any = None
    truncation: Any = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Values of the fields of `Unserved`, besides null, that ask for nothing special."""


class ResponsesRequest(Unserved, kw_only=True):
    """POST /v1/responses"""

    model: _Name
    input: str | Annotated[list[Item], Meta(min_length=1)]
    instructions: str | None = None
    include: list[str] | None = None
    max_output_tokens: _Count | None = None
    metadata: dict[str, str] | None = None
    """Comes back with the answer."""
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    text: TextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    top_p: _Unit | None = None
    user: str | None = None
    """Comes back with the answer."""
    # What is not OpenAI's: as on the chat endpoint.
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: _Unit | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    headrace: WantsBody | None = None
    """What is asked of the route; as on the chat endpoint."""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
