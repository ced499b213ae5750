"""From a response's input items to the messages of a chat."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import RequestError
from headrace.gateway.errors import missing
from headrace.gateway.openai.requests import CalledFunction, ChatMessage, ContentPart, ImageUrl, ToolCall
from headrace.gateway.responses.requests import Item, Part, ResponsesRequest

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def chat_messages(body: ResponsesRequest) -> list[ChatMessage]:
    """The conversation. Raises RequestError that names the item which is wrong or not served."""
    out = _Messages()
    if body.instructions:
        out.add_message("system", body.instructions)
    if isinstance(body.input, str):
        out.add_message("user", body.input)
    else:
        for i, item in enumerate(body.input):
            out.add(item, f"input[{i}]")
    return out.messages


class _Messages:
    """Items of one turn of the assistant's become one message: what it thought, wrote and called."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._called: dict[str, str] = {}
        """The functions' names by their calls' ids: a tool message names the tool, as some templates need."""

    def add(self, item: Item, field: str) -> None:
        """The next item."""
        if item.type == "message":
            role = _ROLES.get(item.role or "")
            if role is None:
                told = f"expected one of {', '.join(_ROLES)}, got {item.role!r:.60}"
                raise RequestError(f"Invalid '{field}.role': {told}.", f"{field}.role")
            read = _with_images if role == "user" else _text
            self.add_message(role, read(item.content, f"{field}.content"))
        elif item.type == "reasoning":
            thought = _text(item.content or item.summary or "", f"{field}.content")
            last = self._unwritten()
            last.reasoning_content = (last.reasoning_content or "") + thought
        elif item.type == "function_call":
            self._add_call(item, field)
        elif item.type == "function_call_output":
            self._add_output(item, field)
        else:
            known = "message, function_call, function_call_output and reasoning"
            raise RequestError(
                f"'{field}.type': only {known} are supported, not {item.type!r:.60}.",
                f"{field}.type",
                code="unsupported_value",
            )

    def add_message(self, role: str, text: str | list[ContentPart]) -> None:
        """A message's text, a user's perhaps with images.

        That of neighbouring system messages is one, for many templates take no more.
        """
        last = self.messages[-1] if self.messages else None
        if role == "assistant":
            self._unwritten().content = text
        elif role == "system" and last is not None and last.role == role:
            last.content = f"{last.content}\n\n{text}"
        else:
            self.messages.append(ChatMessage(role, text))

    def _add_call(self, item: Item, field: str) -> None:
        for name in ("call_id", "name", "arguments"):
            if getattr(item, name) is None:
                raise missing(f"{field}.{name}")
        assert item.call_id is not None and item.name is not None and item.arguments is not None
        self._called[item.call_id] = item.name
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant":
            last = self._unwritten()
        call = ToolCall(
            CalledFunction(item.name, _object(item.arguments, f"{field}.arguments")), item.call_id
        )
        last.tool_calls = [*(last.tool_calls or []), call]

    def _add_output(self, item: Item, field: str) -> None:
        if item.call_id is None:
            raise missing(f"{field}.call_id")
        text = _text(item.output, f"{field}.output")
        name = self._called.get(item.call_id)
        self.messages.append(ChatMessage("tool", text, name=name, tool_call_id=item.call_id))

    def _unwritten(self) -> ChatMessage:
        """The assistant's message that has no text and no calls yet; a new one where there is none."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or last.content or last.tool_calls:
            last = ChatMessage("assistant", "")
            self.messages.append(last)
        return last


def _object(text: str, field: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"Invalid '{field}': expected a JSON object in a text.", field) from error


def _with_images(content: str | list[Part] | None, field: str) -> str | list[ContentPart]:
    """A user's text; in parts where there are images among it."""
    if not isinstance(content, list) or all(part.type != "input_image" for part in content):
        return _text(content, field)
    return [
        _image(part, f"{field}[{i}]")
        if part.type == "input_image"
        else ContentPart("text", _part(part, f"{field}[{i}]"))
        for i, part in enumerate(content)
    ]


def _image(part: Part, field: str) -> ContentPart:
    if part.image_url is None:  # but a file of OpenAI's
        raise missing(f"{field}.image_url")
    return ContentPart("image_url", image_url=ImageUrl(part.image_url, part.detail))


def _text(content: str | list[Part] | None, field: str) -> str:
    if content is None:
        raise missing(field)
    if isinstance(content, str):
        return content
    return "".join(_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part(part: Part, field: str) -> str:
    if part.type not in (*_TEXTS, "refusal"):
        raise RequestError(
            f"'{field}.type': only text is supported, not {part.type!r:.60}.",
            f"{field}.type",
            code="unsupported_value",
        )
    name = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, name)
    if text is None:
        raise missing(f"{field}.{name}")
    return text
