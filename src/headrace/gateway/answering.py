"""An answer on its way from tokens to a dialect: the same for all of them, until it is rendered."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.gateway.openai.answers import Usage
from headrace.models.answer import AnswerParser, AnswerPart, CallArguments, CallStart, Reasoning, Text
from headrace.worker.messages import TokenEvent

Piece = tuple[int, Sequence[AnswerPart], TokenEvent, str | None]
"""What has come of an answer: the sequence, its new parts, the event that brought them, and why it ended.

The reason comes with a sequence's last piece: stop, length, tool_calls, content_filter, cancelled.
"""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is known of an answer before its first token."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str
    fingerprint: str | None
    prompts: Sequence[Sequence[int]]
    """The tokens of each prompt; sequence i answers prompt i // choices."""
    choices: int


class Answering(Protocol):
    """An answer as it comes, piece by piece, until all its sequences have ended."""

    def __aiter__(self) -> Answering: ...

    async def __anext__(self) -> Piece: ...

    def usage(self) -> Usage:
        """Tokens so far."""
        ...

    @property
    def ttft(self) -> float | None:
        """Seconds from the request's arrival to the first token of any sequence; None before that."""
        ...

    @property
    def finish_reasons(self) -> Sequence[str]:
        """Of the sequences that have ended, in that order."""
        ...


@dataclass(frozen=True, slots=True)
class Running:
    """A request that runs: what its answer is written from."""

    head: AnswerHead
    run: Answering
    sampling: SamplingParams
    """How tokens are chosen."""
    token_bytes: Callable[[int], bytes]
    """What one token stands for."""
    texts: Sequence[str] = ()
    """The prompts as text, where the answer begins with them."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """What is told of it before its body."""

    @property
    def sequences(self) -> int:
        """How many there are."""
        return len(self.head.prompts) * self.head.choices


@dataclass(slots=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str = ""
    """A JSON object, unless the answer was cut short."""
    id: str = field(default_factory=lambda: "call_" + secrets.token_hex(12))
    """The client returns it with the tool's result."""


@dataclass(slots=True)
class Answer:
    """One sequence's answer, complete."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str = ""
    stop_string: str = ""
    """The stop string that ended it, if one did."""
    events: list[TokenEvent] = field(default_factory=list)
    parts: list[Sequence[AnswerPart]] = field(default_factory=list)
    """What each of the events brought."""

    def add(self, parts: Sequence[AnswerPart], event: TokenEvent) -> None:
        """Append what has come."""
        self.events.append(event)
        self.parts.append(parts)
        for part in parts:
            match part:
                case Text(text=text):
                    self.text += text
                case Reasoning(text=text):
                    self.reasoning += text
                case CallStart(name=name):
                    self.calls.append(Call(name))
                case CallArguments(index=index, text=text):
                    self.calls[index].arguments += text


class Renderer(Protocol):
    """Writes one request's answer in the words of a dialect, at once or as a stream."""

    content_type: bytes
    """Of the stream; a whole answer is application/json."""

    def whole(self, answers: Sequence[Answer]) -> bytes:
        """The body, once all sequences have ended."""
        ...

    def piece(self, index: int, parts: Sequence[AnswerPart], event: TokenEvent, reason: str | None) -> bytes:
        """What an event of sequence `index` adds to the stream, if anything; `reason` comes with its last."""
        ...

    def end(self) -> bytes:
        """The end of a stream whose sequences have all ended."""
        ...

    def failed(self, error: RequestError) -> bytes:
        """The end of a stream that broke off."""
        ...


class PartsOf:
    """Takes one sequence's events apart, and knows why it ended."""

    __slots__ = ("_called", "_parser")

    def __init__(self, parser: AnswerParser):
        self._parser = parser
        self._called = False

    def take(self, event: TokenEvent) -> tuple[Sequence[AnswerPart], str | None]:
        """The event's parts; and why the sequence ended, if it did: stop, length, tool_calls, cancelled."""
        parts = self._parser.push(event.text)
        reason = event.finish_reason
        if reason is not None:
            parts = [*parts, *self._parser.finish()]
        for part in parts:
            if isinstance(part, CallStart):
                self._called = True
        return parts, "tool_calls" if reason == "stop" and self._called else reason
