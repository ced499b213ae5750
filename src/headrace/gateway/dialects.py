"""How an answer looks at each endpoint: chat messages and deltas, or plain completions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from headrace.gateway.answers import (
    ChatAnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    Choice,
    CompletionChoice,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
)
from headrace.gateway.served import Prompter
from headrace.worker.messages import TokenEvent

_IMPOSSIBLE = -9999.0
"""JSON has no infinity: OpenAI's figure for a token that cannot be."""


class Dialect(Protocol):
    """Makes the choices of a body or of a stream's chunks from the events of sequence `index`."""

    whole_object: str
    chunk_object: str
    id_prefix: str

    def opening(self, index: int) -> Choice | None:
        """The first chunk of a sequence, where the endpoint has one."""
        ...

    def piece(self, index: int, event: TokenEvent) -> Choice:
        """A chunk with an event's text."""
        ...

    def closing(self, index: int, reason: str) -> Choice:
        """The last chunk of a sequence."""
        ...

    def whole(self, index: int, events: Sequence[TokenEvent]) -> Choice:
        """The sequence's answer in one; the last event holds the finish reason."""
        ...


class ChatDialect:
    """POST /v1/chat/completions"""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def __init__(self, prompter: Prompter, logprobs: bool):
        self._prompter = prompter
        self._logprobs = logprobs

    def opening(self, index: int) -> Choice:
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=""))

    def piece(self, index: int, event: TokenEvent) -> Choice:
        return ChatChunkChoice(index, ChatDelta(content=event.text), logprobs=self._logprobs_of([event]))

    def closing(self, index: int, reason: str) -> Choice:
        return ChatChunkChoice(index, ChatDelta(), reason)

    def whole(self, index: int, events: Sequence[TokenEvent]) -> Choice:
        message = ChatAnswerMessage("".join(event.text for event in events))
        return ChatChoice(index, message, events[-1].finish_reason, self._logprobs_of(events))

    def _logprobs_of(self, events: Sequence[TokenEvent]) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        return ChatLogprobs(
            [
                self._token(token, chosen, ids, values)
                for event in events
                for token, (chosen, ids, values) in zip(event.token_ids, event.logprobs, strict=False)
            ]
        )

    def _token(self, token: int, chosen: float, ids: Sequence[int], values: Sequence[float]) -> TokenLogprob:
        raw = self._prompter.token_bytes(token)
        return TokenLogprob(
            _text(raw),
            finite(chosen),
            list(raw),
            [self._top(*pair) for pair in zip(ids, values, strict=True)],
        )

    def _top(self, token: int, logprob: float) -> TopLogprob:
        raw = self._prompter.token_bytes(token)
        return TopLogprob(_text(raw), finite(logprob), list(raw))


class CompletionDialect:
    """POST /v1/completions"""

    whole_object = "text_completion"
    chunk_object = "text_completion"
    id_prefix = "cmpl-"

    def __init__(self, prompter: Prompter, logprobs: bool):
        self._prompter = prompter
        self._logprobs = logprobs
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> None:
        return None

    def piece(self, index: int, event: TokenEvent) -> Choice:
        return CompletionChoice(index, event.text, logprobs=self._logprobs_of(index, [event]))

    def closing(self, index: int, reason: str) -> Choice:
        return CompletionChoice(index, "", reason)

    def whole(self, index: int, events: Sequence[TokenEvent]) -> Choice:
        text = "".join(event.text for event in events)
        return CompletionChoice(index, text, events[-1].finish_reason, self._logprobs_of(index, events))

    def _logprobs_of(self, index: int, events: Sequence[TokenEvent]) -> CompletionLogprobs | None:
        if not self._logprobs:
            return None
        out = CompletionLogprobs([], [], [], [])
        offset = self._offsets.get(index, 0)
        for event in events:
            for token, (chosen, ids, values) in zip(event.token_ids, event.logprobs, strict=False):
                text = _text(self._prompter.token_bytes(token))
                tops = {
                    _text(self._prompter.token_bytes(i)): finite(v) for i, v in zip(ids, values, strict=True)
                }
                out.tokens.append(text)
                out.token_logprobs.append(finite(chosen))
                out.top_logprobs.append(tops)
                out.text_offset.append(offset)
                offset += len(text)
        self._offsets[index] = offset
        return out


def finite(logprob: float) -> float:
    """The log-probability, or a very small one where it is no number that JSON can hold."""
    return logprob if math.isfinite(logprob) else _IMPOSSIBLE


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
