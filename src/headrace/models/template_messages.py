"""Messages as chat templates expect them, where that differs from what OpenAI's API sends."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import RequestError

Messages = Sequence[Mapping[str, Any]]
_Change = Callable[[Mapping[str, Any]], Any]

_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
_ID_LENGTH_CHECK = re.compile(r"\|\s*length\s*!=\s*9\b")


def wants_short_ids(template: str) -> bool:
    """Whether the template refuses ids of calls that are not nine letters and digits, as Mistral's do."""
    return _ID_LENGTH_CHECK.search(template) is not None


def with_call_objects(messages: Messages, *, short_ids: bool) -> Messages:
    """The messages with the arguments of calls as objects and, where asked for, ids of nine characters.

    OpenAI writes arguments as JSON text. Text that is no JSON object stays as it is.
    """

    def change(call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        if isinstance(function, Mapping):
            call = {**call, "function": {**function, "arguments": _parsed(function.get("arguments"))}}
        return {**call, "id": _short_id(call["id"])} if short_ids and "id" in call else call

    changed = [_with_calls(message, change) for message in messages]
    if not short_ids:
        return changed
    return [
        {**message, "tool_call_id": _short_id(message["tool_call_id"])}
        if "tool_call_id" in message
        else message
        for message in changed
    ]


def call_shapes(messages: Messages) -> Iterator[Messages]:
    """The messages in the shapes that templates expect of those with calls, the usual one first.

    Nearly all want arguments as objects, some join their text to a string; beside calls most take content
    that is none, which some demand and others cannot.
    """
    if not any(message.get("tool_calls") for message in messages):
        yield messages
        return
    for content in (None, ""):
        for change in (lambda call: call, _as_text):
            yield [_with_content(_with_calls(message, change), content) for message in messages]


def with_ending(messages: Messages, ending: str) -> Messages:
    """The messages with `ending` behind the last one's content. Raises RequestError where it has none."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
        raise RequestError("the last message to be continued must be an assistant's, with text", "messages")
    return [*messages[:-1], {**last, "content": last["content"] + ending}]


def _with_calls(message: Mapping[str, Any], change: _Change) -> Mapping[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, (list, tuple)) or not calls:
        return message
    return {**message, "tool_calls": [change(call) if isinstance(call, Mapping) else call for call in calls]}


def _with_content(message: Mapping[str, Any], content: str | None) -> Mapping[str, Any]:
    if not message.get("tool_calls") or message.get("content"):
        return message
    return {**message, "content": content}


def _as_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str):
        return call
    text = json.dumps(function.get("arguments"), ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _short_id(call_id: Any) -> Any:
    if not isinstance(call_id, str) or _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
