"""Log-probabilities in the two shapes of OpenAI's: objects for chats, parallel lists for completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from headrace.gateway.openai.answers import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from headrace.worker.messages import TokenEvent

TokenBytes = Callable[[int], bytes]
Entry = tuple[float, list[int], list[float]]
"""The token's own log-probability, the likeliest tokens, and theirs."""

_IMPOSSIBLE = -9999.0
"""JSON has no infinity: OpenAI's figure for a token that cannot be."""


def chat_logprobs(events: Iterable[TokenEvent], token_bytes: TokenBytes) -> ChatLogprobs:
    """Those of the events' tokens."""
    return ChatLogprobs(
        [
            _token(token, *entry, token_bytes)
            for event in events
            for token, entry in zip(event.token_ids, event.logprobs, strict=False)
        ]
    )


class CompletionLogprobsOf:
    """Those of one sequence, with offsets into the text that go on from call to call."""

    def __init__(self, token_bytes: TokenBytes):
        self._token_bytes = token_bytes
        self._offset = 0

    def of_prompt(self, prompt: Sequence[int], entries: Sequence[Entry]) -> CompletionLogprobs:
        """The prompt's, where it is echoed; its first token has none."""
        out = CompletionLogprobs([], [], [], [])
        self._add(out, prompt[0], None)
        for token, entry in zip(prompt[1:], entries, strict=False):
            self._add(out, token, entry)
        return out

    def of(self, events: Iterable[TokenEvent]) -> CompletionLogprobs:
        """The answer's."""
        out = CompletionLogprobs([], [], [], [])
        for event in events:
            for token, entry in zip(event.token_ids, event.logprobs, strict=False):
                self._add(out, token, entry)
        return out

    def _add(self, out: CompletionLogprobs, token: int, entry: Entry | None) -> None:
        text = _text(self._token_bytes(token))
        out.tokens.append(text)
        out.token_logprobs.append(None if entry is None else finite(entry[0]))
        out.top_logprobs.append(None if entry is None else self._tops(entry))
        out.text_offset.append(self._offset)
        self._offset += len(text)

    def _tops(self, entry: Entry) -> dict[str, float]:
        _, ids, values = entry
        return {_text(self._token_bytes(i)): finite(v) for i, v in zip(ids, values, strict=True)}


def finite(logprob: float) -> float:
    """The log-probability, or a very small one where it is no number that JSON can hold."""
    return logprob if math.isfinite(logprob) else _IMPOSSIBLE


def _token(
    token: int, chosen: float, ids: Sequence[int], values: Sequence[float], token_bytes: TokenBytes
) -> TokenLogprob:
    raw = token_bytes(token)
    tops = [_top(other, value, token_bytes) for other, value in zip(ids, values, strict=True)]
    return TokenLogprob(_text(raw), finite(chosen), list(raw), tops)


def _top(token: int, logprob: float, token_bytes: TokenBytes) -> TopLogprob:
    raw = token_bytes(token)
    return TopLogprob(_text(raw), finite(logprob), list(raw))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
