"""From Anthropic's messages, which are made of blocks, to OpenAI's."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import RequestError
from headrace.gateway.anthropic.requests import Block, Conversation
from headrace.gateway.errors import missing
from headrace.gateway.openai.requests import CalledFunction, ChatMessage, ContentPart, ImageUrl, ToolCall

_BETWEEN = "\n"
"""Between blocks of text that a user or a system wrote: they are paragraphs, and not pieces of a sentence."""
_NOT_SENT = "redacted_thinking"
"""Thinking that nobody but Anthropic can read; given back it is left out."""


def chat_messages(body: Conversation) -> list[ChatMessage]:
    """The conversation. Raises RequestError that names the block which is wrong or not served."""
    out = _Messages()
    if body.system:
        out.add_text("system", _plain_text(body.system, "system"))
    for i, message in enumerate(body.messages):
        field = f"messages[{i}].content"
        if message.role == "system":
            out.add_text("system", _plain_text(message.content, field))
        elif message.role == "assistant":
            out.add_assistant(_blocks(message.content), field)
        else:
            out.add_user(_blocks(message.content), field)
    return out.messages


class _Messages:
    """Messages in OpenAI's words; as Anthropic has it, neighbours of one role become one message."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._called: dict[str, str] = {}
        """The tools' names by their calls' ids: a tool message names the tool, as some templates need."""

    def add_text(self, role: str, text: str) -> None:
        """A user's or a system's text."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != role:
            self.messages.append(ChatMessage(role, text))
        elif isinstance(last.content, list):
            last.content.append(ContentPart("text", text))
        else:
            last.content = f"{last.content}{_BETWEEN}{text}"

    def _add_image(self, url: str) -> None:
        """A user's image; what it stands among is then in parts."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "user":
            last = ChatMessage("user", [])
            self.messages.append(last)
        if not isinstance(last.content, list):
            last.content = [ContentPart("text", last.content)]
        last.content.append(ContentPart("image_url", image_url=ImageUrl(url)))

    def add_user(self, blocks: Sequence[Block], field: str) -> None:
        """A user's blocks; tools' results are messages of their own."""
        for i, block in enumerate(blocks):
            where = f"{field}[{i}]"
            if block.type == "tool_result":
                self._add_result(block, where)
            elif block.type == "image":
                self._add_image(_image_url(block, f"{where}.source"))
            else:
                self.add_text("user", _text(block, where, "text, image and tool_result"))
        if not blocks:
            self.add_text("user", "")

    def _add_result(self, block: Block, where: str) -> None:
        if block.tool_use_id is None:
            raise missing(f"{where}.tool_use_id")
        text = "" if block.content is None else _plain_text(block.content, f"{where}.content")
        if block.is_error:
            text = f"Error: {text}"
        name = self._called.get(block.tool_use_id)
        self.messages.append(ChatMessage("tool", text, name=name, tool_call_id=block.tool_use_id))

    def add_assistant(self, blocks: Sequence[Block], field: str) -> None:
        """What the assistant wrote, thought and called."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant":
            last = ChatMessage("assistant", "")
            self.messages.append(last)
        for i, block in enumerate(blocks):
            where = f"{field}[{i}]"
            if block.type == "tool_use":
                last.tool_calls = [*(last.tool_calls or []), self._call(block, where)]
            elif block.type == "thinking":
                if block.thinking is None:
                    raise missing(f"{where}.thinking")
                last.reasoning_content = (last.reasoning_content or "") + block.thinking
            elif block.type != _NOT_SENT:
                last.content = f"{last.content}{_text(block, where, 'text, thinking and tool_use')}"

    def _call(self, block: Block, where: str) -> ToolCall:
        for name in ("id", "name", "input"):
            if getattr(block, name) is None:
                raise missing(f"{where}.{name}")
        assert block.id is not None and block.name is not None and block.input is not None
        self._called[block.id] = block.name
        return ToolCall(CalledFunction(block.name, block.input), block.id)


def _image_url(block: Block, where: str) -> str:
    """The image's URL, which holds the image itself where the block does."""
    source = block.source
    if source is None:
        raise missing(where)
    for kind, needed in (("base64", ("media_type", "data")), ("url", ("url",))):
        if source.type == kind:
            for name in needed:
                if getattr(source, name) is None:
                    raise missing(f"{where}.{name}")
            return source.url or f"data:{source.media_type};base64,{source.data}"
    raise RequestError(
        f"'{where}.type': only base64 and url are supported, not {source.type!r:.60}.",
        f"{where}.type",
        code="unsupported_value",
    )


def _blocks(content: str | list[Block]) -> list[Block]:
    return [Block("text", content)] if isinstance(content, str) else content


def _plain_text(content: str | list[Block], field: str) -> str:
    """What may be nothing but text."""
    texts = [_text(block, f"{field}[{i}]", "text") for i, block in enumerate(_blocks(content))]
    return _BETWEEN.join(texts)


def _text(block: Block, where: str, supported: str) -> str:
    if block.type != "text":
        raise RequestError(
            f"'{where}.type': only {supported} is supported here, not {block.type!r:.60}.",
            f"{where}.type",
            code="unsupported_value",
        )
    if block.text is None:
        raise missing(f"{where}.text")
    return block.text
