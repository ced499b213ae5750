"""From the parts of an answer, as they come, to a stream's content blocks."""

from __future__ import annotations

import secrets

from headrace.gateway.anthropic.answers import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    InputDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from headrace.models.answer import AnswerPart, CallArguments, CallStart, Reasoning, Text


class Blocks:
    """One block is open at a time; a part of another kind closes it and opens the next.

    Blank text opens none, so that what a model puts between its calls is no block of its own.
    """

    def __init__(self) -> None:
        self._index = -1
        self._open: type[Block] | None = None
        self._blank = ""
        """Text that waits for some that is not blank."""

    def add(self, part: AnswerPart) -> list[Event]:
        """The events that the part gives."""
        match part:
            case Text(text=text):
                return self._text(text)
            case Reasoning(text=text):
                opened = [] if self._open is ThinkingBlock else self._begin(ThinkingBlock(""))
                return [*opened, BlockDelta(self._index, ThinkingDelta(text))]
            case CallStart(name=name):
                return self._begin(ToolUseBlock(tool_use_id(), name, {}))
            case CallArguments(text=text):
                return [BlockDelta(self._index, InputDelta(text))]

    def close(self) -> list[Event]:
        """Ends the block that is open, if one is."""
        self._blank = ""
        if self._open is None:
            return []
        self._open = None
        return [BlockStop(self._index)]

    def _text(self, text: str) -> list[Event]:
        if self._open is TextBlock:
            return [BlockDelta(self._index, TextDelta(text))]
        text = self._blank + text
        if not text.strip():
            self._blank = text
            return []
        return [*self._begin(TextBlock("")), BlockDelta(self._index, TextDelta(text))]

    def _begin(self, block: Block) -> list[Event]:
        closed = self.close()
        self._index += 1
        self._open = type(block)
        return [*closed, BlockStart(self._index, block)]


def tool_use_id() -> str:
    """A new call's id, which its result will name."""
    return "toolu_" + secrets.token_hex(12)
