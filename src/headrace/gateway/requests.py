"""What clients may send: the bodies of OpenAI's completion endpoints, checked while they are decoded.

Fields that change nothing in the answer (`user`, `metadata`, `store`, …) are ignored. Fields that would
change it but are not served are listed here too, so that they are refused by name and never dropped.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from headrace.errors import RequestError

_Count = Annotated[int, Meta(ge=1)]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Logprobs = Annotated[int, Meta(ge=0, le=20)]
_StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
_TokenId = Annotated[int, Meta(ge=0)]


class StreamOptions(Struct):
    """What a stream carries besides its text."""

    include_usage: bool | None = None
    """A last chunk with the usage."""
    continuous_usage_stats: bool | None = None
    """The usage so far in every chunk."""


class Unserved(Struct, kw_only=True):
    """Fields that mean something but are not served; only the values in NEUTRAL are let through."""

    add_generation_prompt: Any = None
    audio: Any = None
    bad_words: Any = None
    best_of: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    continue_final_message: Any = None
    documents: Any = None
    echo: Any = None
    function_call: Any = None
    functions: Any = None
    grammar: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    include_stop_str_in_output: Any = None
    length_penalty: Any = None
    logit_bias: Any = None
    min_tokens: Any = None
    modalities: Any = None
    n: Any = None
    prompt_logprobs: Any = None
    reasoning_effort: Any = None
    response_format: Any = None
    skip_special_tokens: Any = None
    structured_outputs: Any = None
    suffix: Any = None
    tool_choice: Any = None
    tools: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    verbosity: Any = None
    web_search_options: Any = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0, 1),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
}
"""Values of the fields of `Unserved`, besides null, that ask for nothing special."""


class GenerationRequest(Unserved, kw_only=True):
    """What both endpoints share: which model, how tokens are chosen, and when to stop."""

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stop: _StopString | Annotated[list[_StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[_TokenId], Meta(max_length=256)] | None = None
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
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Cached prefixes are shared only among requests of equal salt."""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """Lower runs first."""


class ContentPart(Struct):
    """A piece of a message."""

    type: str
    text: str | None = None


class ChatMessage(Struct):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: _Logprobs | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions"""

    prompt: str | list[str | int | list[int]]
    """A text, several texts, token ids, or several lists of them."""
    logprobs: _Logprobs | None = None


def refuse_unserved(request: Unserved) -> None:
    """Raises RequestError for the first field that asks for what is not served."""
    for name in Unserved.__struct_fields__:
        value = getattr(request, name)
        neutral = NEUTRAL.get(name, ())
        if value is None or any(type(value) is type(allowed) and value == allowed for allowed in neutral):
            continue
        raise RequestError(_not_supported(name, value, neutral), name, code="unsupported_value")


def _not_supported(name: str, value: Any, neutral: tuple[Any, ...]) -> str:
    if not neutral:
        return f"'{name}' is not supported yet; leave it out."
    served = " or ".join(msgspec.json.encode(allowed).decode() for allowed in neutral)
    above = type(value) is int and type(neutral[0]) is int and value > neutral[0]
    return f"'{name}' {'above' if above else 'other than'} {served} is not supported yet."
