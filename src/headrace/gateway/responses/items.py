"""From the parts of an answer, as they come, to a response's items and a stream's events about them."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from headrace.gateway.responses.answers import (
    CallItem,
    Event,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)
from headrace.models.answer import AnswerPart, CallArguments, CallStart, Reasoning, Text


class Items:
    """One item is open at a time; a part of another kind completes it and opens the next.

    Blank text opens none, so that what a model puts between its calls is no message of its own.
    """

    def __init__(self, tell: Callable[[Event], None]) -> None:
        """`tell` is given each event, and must encode it at once, for items change."""
        self.output: list[Item] = []
        self._tell = tell
        self._open: Item | None = None
        self._blank = ""
        """Text that waits for some that is not blank."""

    def add(self, part: AnswerPart) -> None:
        """Takes the next part."""
        match part:
            case Text(text=text):
                self._text(text)
            case Reasoning(text=text):
                if not isinstance(self._open, ReasoningItem):
                    self._begin(ReasoningItem(_id("rs"), "in_progress", []))
                self._write(text)
            case CallStart(name=name):
                self._begin(CallItem(_id("fc"), "in_progress", _id("call"), name, ""))
            case CallArguments(text=text):
                self._write(text)

    def close(self, status: Status = "completed") -> None:
        """Ends the item that is open, if one is."""
        self._blank = ""
        item, self._open = self._open, None
        if item is None:
            return
        if isinstance(item, CallItem):
            event = self._about(item, "function_call_arguments.done")
            event.name, event.arguments = item.name, item.arguments
            self._tell(event)
        else:
            part = item.content[0]
            event = self._about(item, f"{_kind(item)}.done")
            event.text = part.text
            if isinstance(item, MessageItem):
                event.logprobs = []
            self._tell(event)
            event = self._about(item, "content_part.done")
            event.part = part
            self._tell(event)
        item.status = status
        self._tell_of("output_item.done", item)

    def break_off(self) -> None:
        """Leaves the item that is open incomplete, and tells nothing of it."""
        if self._open is not None:
            self._open.status = "incomplete"

    def _text(self, text: str) -> None:
        if not isinstance(self._open, MessageItem):
            text = self._blank + text
            if not text.strip():
                self._blank = text
                return
            self._begin(MessageItem(_id("msg"), "in_progress", []))
        self._write(text)

    def _begin(self, item: Item) -> None:
        self.close()
        self.output.append(item)
        self._open = item
        self._tell_of("output_item.added", item)
        if isinstance(item, CallItem):
            return
        part: OutputText | ReasoningText
        if isinstance(item, MessageItem):
            part = OutputText("")
            item.content.append(part)
        else:
            part = ReasoningText("")
            item.content.append(part)
        event = self._about(item, "content_part.added")
        event.part = part
        self._tell(event)

    def _write(self, text: str) -> None:
        item = self._open
        assert item is not None
        if isinstance(item, CallItem):
            item.arguments += text
            event = self._about(item, "function_call_arguments.delta")
        else:
            item.content[0].text += text
            event = self._about(item, f"{_kind(item)}.delta")
            if isinstance(item, MessageItem):
                event.logprobs = []
        event.delta = text
        self._tell(event)

    def _tell_of(self, kind: str, item: Item) -> None:
        self._tell(Event(f"response.{kind}", output_index=len(self.output) - 1, item=item))

    def _about(self, item: Item, kind: str) -> Event:
        event = Event(f"response.{kind}", item_id=item.id, output_index=len(self.output) - 1)
        if not isinstance(item, CallItem):
            event.content_index = 0
        return event


def _kind(item: MessageItem | ReasoningItem) -> str:
    return "output_text" if isinstance(item, MessageItem) else "reasoning_text"


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
