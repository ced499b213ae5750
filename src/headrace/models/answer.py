"""What an answer consists of besides plain text: reasoning and calls of tools, as pieces in a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote for itself, between its think tags."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins; its arguments follow."""

    index: int
    """Counted from 0 within the answer."""
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments; the pieces of one call joined are one JSON object."""

    index: int
    text: str


AnswerPart = Text | Reasoning | CallStart | CallArguments


def join_parts(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """The same answer in the fewest parts: neighbours that continue one another are one."""
    joined: list[AnswerPart] = []
    pieces: list[str] = []
    for part in parts:
        if isinstance(part, CallStart):
            _flush(joined, pieces)
            joined.append(part)
        elif part.text:
            if not (pieces and _continues(joined[-1], part)):
                _flush(joined, pieces)
                joined.append(part)
            pieces.append(part.text)
    _flush(joined, pieces)
    return joined


def _flush(joined: list[AnswerPart], pieces: list[str]) -> None:
    if pieces and not isinstance(last := joined[-1], CallStart):
        joined[-1] = replace(last, text="".join(pieces))
    pieces.clear()


def _continues(last: AnswerPart, part: AnswerPart) -> bool:
    if isinstance(last, CallArguments) and isinstance(part, CallArguments):
        return last.index == part.index
    return type(last) is type(part)


class AnswerParser(Protocol):
    """Takes one answer apart while it is written. Holds back only what a tag to come could still change."""

    def push(self, text: str) -> list[AnswerPart]:
        """What is certain with this text, in order."""
        ...

    def finish(self) -> list[AnswerPart]:
        """What was held back; to be called last. A call that was cut short is what has come of it."""
        ...


class AnswerFormat(Protocol):
    """What a model family writes besides text."""

    def parser(self, tools: Sequence[Mapping[str, Any]] | None, prompt_tail: str) -> AnswerParser:
        """For one answer to a prompt that ends with `prompt_tail`, where these tools were offered."""
        ...

    def grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        choice: str | Mapping[str, Any],
        parallel: bool,
        prompt_tail: str = "",
    ) -> str | None:
        """What an answer must match under OpenAI's `tool_choice`, in llguidance's dialect of Lark.

        None where it is free. `parallel` allows more than one call.
        """
        ...

    def after_reasoning(self, rules: str, prompt_tail: str) -> str | None:
        """A grammar for reasoning and then what Lark rules say, of which the first is `answer`.

        None for models that do not think.
        """
        ...


class PlainParser:
    """For answers that are text and nothing else."""

    def push(self, text: str) -> list[AnswerPart]:
        """The text as it is."""
        return [Text(text)] if text else []

    def finish(self) -> list[AnswerPart]:
        """Nothing: none was held back."""
        return []


class PlainFormat:
    """Of models that write text and nothing else."""

    def parser(self, tools: Sequence[Mapping[str, Any]] | None, prompt_tail: str) -> AnswerParser:
        return PlainParser()

    def grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        choice: str | Mapping[str, Any],
        parallel: bool,
        prompt_tail: str = "",
    ) -> str | None:
        return None

    def after_reasoning(self, rules: str, prompt_tail: str) -> str | None:
        return None
