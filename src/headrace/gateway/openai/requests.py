"""What clients may send: the bodies of OpenAI's completion endpoints, checked while they are decoded.

The other dialects are translated into these. Fields that change nothing in the answer (`user`, `metadata`,
`store`, …) are ignored. Fields that would change it but are not served are listed here too, so that they
are refused by name and never dropped.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from headrace.errors import RequestError
from headrace.routing.wants import WantsBody

_Count = Annotated[int, Meta(ge=1)]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Logprobs = Annotated[int, Meta(ge=0, le=20)]
_StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
_TokenId = Annotated[int, Meta(ge=0)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]

MAX_CHOICES = 128


class StreamOptions(Struct):
    """What a stream carries besides its text."""

    include_usage: bool | None = None
    """A last chunk with the usage."""
    continuous_usage_stats: bool | None = None
    """The usage so far in every chunk."""


class JsonSchemaFormat(Struct):
    """The inside of a response format of the type json_schema."""

    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: JsonSchemaFormat | None = None
    regex: str | None = None
    grammar: str | None = None
    """In llguidance's dialect of Lark."""


class StructuredOutputs(Struct):
    """The same in vLLM's words; one of the fields."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Unserved(Struct, kw_only=True):
    """Fields that mean something but are not served; only the values in NEUTRAL are let through."""

    audio: Any = None
    bad_words: Any = None
    chat_template: Any = None
    function_call: Any = None
    functions: Any = None
    length_penalty: Any = None
    modalities: Any = None
    prompt_logprobs: Any = None
    skip_special_tokens: Any = None
    suffix: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    web_search_options: Any = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bad_words": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1.0, 1),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "use_beam_search": (False,),
}
"""Values of the fields of `Unserved`, besides null, that ask for nothing special."""


class GenerationRequest(Unserved, kw_only=True):
    """What both endpoints share: which model, how tokens are chosen, and when to stop."""

    model: Annotated[str, Meta(min_length=1)]
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: _Count | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stop: _StopString | Annotated[list[_StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[_TokenId], Meta(max_length=256)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: _Unit | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """0 and -1 both keep all tokens."""
    min_p: _Unit | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None
    ) = None
    """By token id, as text; -100 bans a token, 100 all but forces it."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1)] | None = None
    guided_grammar: str | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Cached prefixes are shared only among requests of equal salt."""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """Lower runs first."""
    headrace: WantsBody | None = None
    """What is asked of the route, where one is taken."""


class ImageUrl(Struct):
    """Where an image is, or with `data:` the image itself."""

    url: str
    detail: str | None = None


class ContentPart(Struct):
    """A piece of a message."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    """For remote models only: those that are computed here take no images."""


class CalledFunction(Struct):
    """Which function an assistant called, and with what."""

    name: _Name
    arguments: str | dict[str, Any]
    """A JSON object, as OpenAI has it in a text; or the object itself."""


class ToolCall(Struct):
    """A call in an assistant's message."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


class ChatMessage(Struct):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    function_call: Any = None
    audio: Any = None


class Function(Struct, omit_defaults=True):
    """A function that the model may call."""

    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments; none takes any object."""
    strict: bool | None = None


class Tool(Struct):
    """A tool that the model may use."""

    type: Literal["function"]
    function: Function


class NamedFunction(Struct):
    """The inside of a choice of one function."""

    name: _Name


class NamedTool(Struct):
    """The choice of one function."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: _Logprobs | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    """Handed to the chat template; "none" also turns `enable_thinking` off there."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables for the chat template."""
    documents: list[dict[str, Any]] | None = None
    """For templates that know documents."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """The last message is an answer's beginning, to be continued."""


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions"""

    prompt: str | list[str | int | list[int]]
    """A text, several texts, token ids, or several lists of them."""
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    """0 only with `echo`."""
    echo: bool | None = None
    """The answer begins with the prompt; with `logprobs` its tokens have theirs."""
    best_of: Annotated[int, Meta(ge=1)] | None = None
    logprobs: _Logprobs | None = None


def refuse_unserved(request: GenerationRequest) -> None:
    """Raises RequestError for the first field that asks for what is not served."""
    for name in Unserved.__struct_fields__:
        value = getattr(request, name)
        neutral = NEUTRAL.get(name, ())
        if value is None or any(type(value) is type(allowed) and value == allowed for allowed in neutral):
            continue
        raise RequestError(_not_supported(name, neutral), name, code="unsupported_value")
    if isinstance(request, CompletionRequest) and request.best_of not in (None, request.n or 1):
        raise RequestError(
            "'best_of' other than 'n' is not supported; ask for that many choices with 'n'.",
            "best_of",
            code="unsupported_value",
        )


def _not_supported(name: str, neutral: tuple[Any, ...]) -> str:
    if not neutral:
        return f"'{name}' is not supported; leave it out."
    served = " or ".join(msgspec.json.encode(allowed).decode() for allowed in neutral)
    return f"'{name}' other than {served} is not supported."
