"""A request in the words of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors import RequestError
from headrace.gateway.openai.requests import ChatMessage, ChatRequest, ToolCall
from headrace.gateway.prompts import offered_tools
from headrace.gateway.remotes.call_ids import CallIds, call_ids
from headrace.gateway.remotes.contents import Image, contents
from headrace.gateway.remotes.expressible import Neutral, refuse_unknown
from headrace.gateway.remotes.outgoing import There, allowed_tokens

UNKNOWN: Neutral = {"top_k": (0, -1), "continue_final_message": (False,)}
"""What OpenAI's API has no words for, besides what no API has."""
_SAME = (
    "temperature",
    "top_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "response_format",
    "reasoning_effort",
    "n",
)
"""Fields that are handed on as they are."""

_encode = msgspec.json.Encoder().encode


def check_openai(name: str, request: ChatRequest) -> None:
    """Raises RemoteError for what cannot be asked of the remote of that name."""
    refuse_unknown(name, request, UNKNOWN)


def openai_body(there: There, request: ChatRequest) -> bytes:
    """The body of a request that was checked. Raises RequestError for what is wrong in itself."""
    ids = call_ids(request.messages)
    body = streamed(there, request, _SAME)
    body["messages"] = [_message(i, message, ids) for i, message in enumerate(request.messages)]
    if (most := allowed_tokens(request, there.max_output)) is not None:
        newer = there.newer_limit or (
            request.max_completion_tokens is not None and "max_completion_tokens" not in there.forbids
        )
        body["max_completion_tokens" if newer else "max_tokens"] = most
    if request.response_format is not None:
        body["response_format"] = _without_nulls(request.response_format)
    if request.tools:
        offered_tools(request)  # checks the choice
        body["tools"] = request.tools
        for field in ("tool_choice", "parallel_tool_calls"):
            if (value := getattr(request, field)) is not None:
                body[field] = value
    if request.top_logprobs and not request.logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    if request.logprobs:
        body["logprobs"] = True
        if request.top_logprobs is not None:
            body["top_logprobs"] = request.top_logprobs
    return _encode(body)


def streamed(there: There, request: msgspec.Struct, same: Sequence[str]) -> dict[str, Any]:
    """A body that asks for a stream with usage at its end, and hands on what the request says of `same`."""
    body: dict[str, Any] = {"model": there.name, "stream": True}
    if "stream_options" not in there.forbids:
        body["stream_options"] = {"include_usage": True}
    return body | {field: value for field in same if (value := getattr(request, field)) is not None}


def _message(index: int, message: ChatMessage, ids: CallIds) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": _content(index, message)}
    if message.name is not None and message.role != "tool":
        plain["name"] = message.name
    if message.role == "tool":
        plain["tool_call_id"] = ids.results[index]
    if message.tool_calls:
        plain["tool_calls"] = [_call(call, ids.calls[index, k]) for k, call in enumerate(message.tool_calls)]
        plain["content"] = plain["content"] or None
    return plain


def _content(index: int, message: ChatMessage) -> str | list[dict[str, Any]] | None:
    if not isinstance(message.content, list):
        return message.content
    parts = list(contents(message, f"messages[{index}]"))
    return [_image(part) if isinstance(part, Image) else {"type": "text", "text": part} for part in parts]


def _image(image: Image) -> dict[str, Any]:
    source = {"url": image.url} if image.detail is None else {"url": image.url, "detail": image.detail}
    return {"type": "image_url", "image_url": source}


def _call(call: ToolCall, call_id: str) -> dict[str, Any]:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else _encode(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": call.function.name, "arguments": text}}


def _without_nulls(value: Any) -> Any:
    """The struct as a dict that leaves out what is not set; a schema within stays as it is."""
    return {
        field: _without_nulls(inner) if isinstance(inner, msgspec.Struct) else inner
        for field in value.__struct_fields__
        if (inner := getattr(value, field)) is not None
    }
