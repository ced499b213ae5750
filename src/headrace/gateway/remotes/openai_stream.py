"""What OpenAI's API streams: chunks of a chat, or of a text completion."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from headrace.gateway.answering import Piece
from headrace.gateway.remotes.errors import garbage
from headrace.gateway.remotes.logprobs import Vocabulary
from headrace.gateway.remotes.parts import Parts
from headrace.gateway.remotes.refusals import Told, in_stream
from headrace.gateway.remotes.secret import Secret
from headrace.gateway.remotes.tally import Reported
from headrace.worker.messages import TokenEvent

_DONE = b"[DONE]"
_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Part(Struct):
    """Of content that comes as a list, as Mistral's does once a model thinks."""

    text: str | None = None
    thinking: list[_Part] | None = None


class _Delta(Struct):
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same by another name, which some servers have."""
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    """Of a text completion."""
    finish_reason: str | None = None
    logprobs: Raw = Raw(b"null")
    """Decoded apart, where they were asked for."""


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: Raw = Raw(b"null")
    """Decoded apart: a wrong one spoils no answer."""
    error: Any = None


class _Details(Struct):
    cached_tokens: Any = 0
    reasoning_tokens: Any = 0


class _Usage(Struct):
    prompt_tokens: Any = -1
    completion_tokens: Any = -1
    total_tokens: Any = -1
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_usage = msgspec.json.Decoder(_Usage | None).decode


class OpenAIStream:
    """Reads one answer. `take` raises RemoteError for what the API does not know, and for errors told."""

    def __init__(self, name: str, parts: Parts, secret: Secret):
        self._name = name
        self._parts = parts
        self._secret = secret
        self.done = False
        """The stream said that it has ended."""
        self._usage = b""
        self._ids: dict[tuple[int, int], str] = {}
        """The last call's id by choice and index."""

    def take(self, data: bytes | bytearray) -> list[Piece]:
        """What an event adds."""
        if data == _DONE:
            self.done = True
            return []
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise garbage(self._name, "an event that is no chunk of a completion") from None
        if chunk.error is not None:
            raise in_stream(self._name, Told.of(chunk.error).scrubbed(self._secret))
        if (usage := bytes(chunk.usage)) != b"null":
            self._usage = usage
        pieces: list[Piece] = []
        for choice in chunk.choices or ():
            before = len(pieces)
            if choice.delta is not None:
                self._add(pieces, choice.index, choice.delta)
            if choice.text:
                pieces.append(self._parts.text(choice.index, choice.text))
            if self._parts.vocabulary is not None:
                self._add_logprobs(pieces, before, choice, self._parts.vocabulary)
            if choice.finish_reason:  # some servers say "" until the end
                if choice.finish_reason == "error":
                    raise in_stream(self._name, Told.of(None))
                pieces.append(self._parts.end(choice.index, _REASONS.get(choice.finish_reason, "stop")))
        return pieces

    def reported(self) -> Reported | None:
        """The usage, where the remote has told it."""
        try:
            usage = _decode_usage(self._usage or b"null")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        if usage is None:
            return None
        cached = usage.prompt_tokens_details or _Details()
        unseen = (usage.completion_tokens_details or _Details()).reasoning_tokens
        output = usage.completion_tokens
        if beside := _reasoning_beside(usage):
            output, unseen = output + beside, beside
        return Reported(usage.prompt_tokens, cached.cached_tokens or 0, output, unseen)

    def _add(self, pieces: list[Piece], choice: int, delta: _Delta) -> None:
        if thought := delta.reasoning_content or delta.reasoning:
            pieces.append(self._parts.reasoning(choice, thought))
        for part in delta.content if isinstance(delta.content, list) else ():
            if thought := "".join(inner.text or "" for inner in part.thinking or ()):
                pieces.append(self._parts.reasoning(choice, thought))
            if part.text:
                pieces.append(self._parts.text(choice, part.text))
        if isinstance(text := delta.content or delta.refusal, str) and text:
            pieces.append(self._parts.text(choice, text))
        for position, call in enumerate(delta.tool_calls or ()):
            self._add_call(pieces, choice, position if call.index is None else call.index, call)

    def _add_logprobs(
        self, pieces: list[Piece], before: int, choice: _Choice, vocabulary: Vocabulary
    ) -> None:
        """They go with the first of the choice's new pieces."""
        numbers, logprobs = vocabulary.read(choice.logprobs)
        if not numbers:
            return
        if len(pieces) == before:
            pieces.append(self._parts.silence(choice.index))
        index, parts, event, reason = pieces[before]
        told = TokenEvent(event.id, event.text, numbers, logprobs=logprobs)
        pieces[before] = index, parts, told, reason

    def _add_call(self, pieces: list[Piece], choice: int, index: int, call: _Call) -> None:
        """A delta with another id begins another call, for some servers number all of them 0."""
        function = call.function or _Function()
        known = self._ids.get((choice, index))
        begins = known is None or bool(call.id and known and call.id != known and function.name)
        if begins:
            self._ids[choice, index] = known = call.id or f"call {index}"
            pieces.append(self._parts.call(choice, (index, known), function.name or ""))
        if function.arguments:
            pieces.append(self._parts.arguments(choice, (index, known), function.arguments))


def _reasoning_beside(usage: _Usage) -> int:
    """Tokens of reasoning that are paid for, and that xAI's and Google's servers count in the total only."""
    told = (usage.total_tokens, usage.prompt_tokens, usage.completion_tokens)
    total, prompt, completion = (count if type(count) is int else -1 for count in told)
    return max(0, total - prompt - completion) if prompt >= 0 and completion >= 0 else 0
