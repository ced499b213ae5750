"""A request in the words of Anthropic's API."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from headrace.errors import RequestError
from headrace.gateway.errors import missing
from headrace.gateway.openai.requests import ChatMessage, ChatRequest, NamedTool, Tool, ToolCall
from headrace.gateway.prompts import offered_tools, stop_strings
from headrace.gateway.remotes.call_ids import CallIds, call_ids
from headrace.gateway.remotes.contents import Image, contents
from headrace.gateway.remotes.errors import not_expressible
from headrace.gateway.remotes.expressible import Neutral, refuse_unknown
from headrace.gateway.remotes.outgoing import There, allowed_tokens

DEFAULT_MAX_TOKENS = 4096
"""The API wants a number; this where neither the request nor the table has one."""
_UNKNOWN: Neutral = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
}
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_EFFORTS = {"minimal": "low"}
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,")
_ANY_OBJECT = {"type": "object"}

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def check_anthropic(name: str, request: ChatRequest) -> None:
    """Raises RemoteError for what cannot be asked of the remote of that name."""
    refuse_unknown(name, request, _UNKNOWN)
    if request.temperature is not None and request.temperature > 1:
        raise not_expressible(name, "temperature", "takes at most 1")
    if any(stop.isspace() for stop in stop_strings(request)):
        raise not_expressible(name, "stop", "stops at no white space alone")
    if request.response_format is not None and request.response_format.type == "json_object":
        raise not_expressible(name, "response_format", "can be held to a JSON schema, but not to any object")


def anthropic_body(there: There, request: ChatRequest) -> bytes:
    """The body of a request that was checked. Raises RequestError for what is wrong in itself."""
    most = allowed_tokens(request, there.max_output) or there.max_output or DEFAULT_MAX_TOKENS
    body: dict[str, Any] = {
        "model": there.name,
        "max_tokens": most,
        "stream": True,
    }
    system, messages = _conversation(request)
    if system:
        body["system"] = system
    body["messages"] = messages
    _set_sampling(body, request)
    _set_tools(body, request)
    _set_output(body, request)
    return _encode(body)


def _set_sampling(body: dict[str, Any], request: ChatRequest) -> None:
    for field in ("temperature", "top_p"):
        if (value := getattr(request, field)) is not None:
            body[field] = value
    if request.top_k is not None and request.top_k > 0:
        body["top_k"] = request.top_k
    if stops := stop_strings(request):
        body["stop_sequences"] = stops


def _set_tools(body: dict[str, Any], request: ChatRequest) -> None:
    offered_tools(request)  # checks the choice
    if not request.tools:
        return
    body["tools"] = [_tool(tool) for tool in request.tools]
    choice = request.tool_choice
    single = request.parallel_tool_calls is False
    if choice is None and not single:
        return
    if isinstance(choice, NamedTool):
        told: dict[str, Any] = {"type": "tool", "name": choice.function.name}
    else:
        told = {"type": _CHOICES[choice or "auto"]}
    if single and choice != "none":
        told["disable_parallel_tool_use"] = True
    body["tool_choice"] = told


def _set_output(body: dict[str, Any], request: ChatRequest) -> None:
    """Thinking, effort, and the form of the answer."""
    variables = request.chat_template_kwargs or {}
    if variables.get("enable_thinking") and not _amid_calls(request):
        budget = variables.get("thinking_budget")
        body["thinking"] = (
            {"type": "enabled", "budget_tokens": budget} if budget is not None else {"type": "adaptive"}
        )
    config: dict[str, Any] = {}
    if request.reasoning_effort not in (None, "none"):
        config["effort"] = _EFFORTS.get(request.reasoning_effort or "", request.reasoning_effort)
    asked = request.response_format
    if asked is not None and asked.type == "json_schema":
        schema = None if asked.json_schema is None else asked.json_schema.schema
        if schema is None:
            raise missing("response_format.json_schema.schema")
        config["format"] = {"type": "json_schema", "schema": schema}
    if config:
        body["output_config"] = config


def _amid_calls(request: ChatRequest) -> bool:
    """The model goes on behind its own calls.

    If it thinks, the API wants the thoughts before those calls again, signed; signatures are not handed on.
    """
    said = [message for message in request.messages if message.role == "assistant"]
    return bool(said and said[-1].tool_calls)


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool.function
    told: dict[str, Any] = {"name": function.name, "input_schema": function.parameters or _ANY_OBJECT}
    if function.description is not None:
        told["description"] = function.description
    if function.strict:
        told["strict"] = True
    return told


def _conversation(request: ChatRequest) -> tuple[str, list[dict[str, Any]]]:
    """The system's words in one, and all else, neighbours of one role in one message."""
    ids = call_ids(request.messages)
    system: list[str] = []
    messages: list[dict[str, Any]] = []
    for i, message in enumerate(request.messages):
        where = f"messages[{i}]"
        if message.role in ("system", "developer"):
            system.append(_plain_text(message, where))
            continue
        role, blocks = _blocks(i, message, ids)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    return "\n\n".join(filter(None, system)), messages


def _blocks(index: int, message: ChatMessage, ids: CallIds) -> tuple[str, list[dict[str, Any]]]:
    """Whose they are, and the message's blocks; the API takes no empty text."""
    where = f"messages[{index}]"
    blocks = [
        _image(part) if isinstance(part, Image) else {"type": "text", "text": part}
        for part in contents(message, where)
        if part
    ]
    if message.role == "user":
        return "user", blocks
    if message.role == "tool":
        return "user", [{"type": "tool_result", "tool_use_id": ids.results[index], "content": blocks}]
    if message.role != "assistant":
        raise RequestError(f"Invalid '{where}.role': got {message.role!r:.60}.", f"{where}.role")
    calls = [_call(call, ids.calls[index, k], where, k) for k, call in enumerate(message.tool_calls or ())]
    return "assistant", blocks + calls


def _plain_text(message: ChatMessage, where: str) -> str:
    texts = list(contents(message, where))
    for text in texts:
        if isinstance(text, Image):
            raise RequestError(f"'{text.field}': a {message.role}'s message has no images.", text.field)
    return "".join(text for text in texts if isinstance(text, str))


def _image(image: Image) -> dict[str, Any]:
    if held := _DATA_URL.match(image.url):
        source = {"type": "base64", "media_type": held[1], "data": image.url[held.end() :]}
    elif image.url.startswith(("https://", "http://")):
        source = {"type": "url", "url": image.url}
    else:
        raise RequestError(
            f"Invalid '{image.field}': expected an https:// URL, or data: with base64.", image.field
        )
    return {"type": "image", "source": source}


def _call(call: ToolCall, call_id: str, where: str, number: int) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        field = f"{where}.tool_calls[{number}].function.arguments"
        try:
            arguments = _decode_object(arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            raise RequestError(f"Invalid '{field}': expected a JSON object in a text.", field) from None
    return {"type": "tool_use", "id": call_id, "name": call.function.name, "input": arguments}
