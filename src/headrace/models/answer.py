"""What an answer consists of besides plain text: reasoning and calls of tools, as pieces in a stream."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Text(NamedTuple):
    """Text for the reader."""

    text: str


class Reasoning(NamedTuple):
    """Text that the model wrote for itself, between its think tags."""

    text: str


class CallStart(NamedTuple):
    """A call of a tool begins; its arguments follow."""

    index: int
    """Counted from 0 within the answer."""
    name: str


class CallArguments(NamedTuple):
    """A piece of a call's arguments; the pieces of one call joined are one JSON object."""

    index: int
    text: str


AnswerPart = Text | Reasoning | CallStart | CallArguments


class AnswerParser(Protocol):
    """Takes one answer apart while it is written. Holds back only what a tag to come could still change."""

    def push(self, text: str) -> list[AnswerPart]:
        """What is certain with this text, in order."""
        ...

    def finish(self) -> list[AnswerPart]:
        """What was held back; to be called last. A call that was cut short is what has come of it."""
        ...


class PlainParser:
    """For answers that are text and nothing else."""

    def push(self, text: str) -> list[AnswerPart]:
        """The text as it is."""
        return [Text(text)] if text else []

    def finish(self) -> list[AnswerPart]:
        """Nothing: none was held back."""
        return []
