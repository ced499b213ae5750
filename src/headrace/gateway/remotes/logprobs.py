"""Log-probabilities as a remote tells them, in the form that those of local models have.

Local tokens travel as numbers of a vocabulary. A remote's is not known here, so its tokens are numbered as
they come.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from headrace.gateway.openai.logprobs import Entry


class _Top(Struct):
    token: str
    logprob: float
    bytes: list[Annotated[int, Meta(ge=0, le=255)]] | None = None


class _Token(_Top):
    top_logprobs: list[_Top] | None = None


class _Logprobs(Struct):
    """Of a chat a list of objects, of a text completion parallel lists."""

    content: list[_Token] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


_decode = msgspec.json.Decoder(_Logprobs | None).decode


class Vocabulary:
    """The tokens that were told in one answer."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._tokens: list[bytes] = []

    def token_bytes(self, number: int) -> bytes:
        """What the token of that number stands for."""
        return self._tokens[number]

    def read(self, told: Raw) -> tuple[list[int], list[Entry]]:
        """Tokens and their log-probabilities; none of what is no such thing, for it spoils no answer."""
        try:
            logprobs = _decode(told)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return [], []
        if logprobs is None:
            return [], []
        if logprobs.tokens is not None:
            return self._of_text(logprobs, logprobs.tokens)
        content = logprobs.content or []
        entries = [self._entry(token.logprob, token.top_logprobs or []) for token in content]
        return [self._number(token) for token in content], entries

    def _of_text(self, logprobs: _Logprobs, tokens: list[str]) -> tuple[list[int], list[Entry]]:
        values = logprobs.token_logprobs or []
        tops = logprobs.top_logprobs or [None] * len(values)
        numbers, entries = [], list[Entry]()
        for token, value, others in zip(tokens, values, tops, strict=False):
            if value is None:
                continue
            numbers.append(self._number(_Top(token, value)))
            entries.append(self._entry(value, [_Top(*other) for other in (others or {}).items()]))
        return numbers, entries

    def _entry(self, logprob: float, tops: list[_Top]) -> Entry:
        return _certain(logprob), [self._number(top) for top in tops], [_certain(top.logprob) for top in tops]

    def _number(self, token: _Top) -> int:
        raw = token.token.encode("utf-8", "replace") if token.bytes is None else bytes(token.bytes)
        number = self._numbers.setdefault(raw, len(self._tokens))
        if number == len(self._tokens):
            self._tokens.append(raw)
        return number


def _certain(logprob: float) -> float:
    """Nothing is more than certain, whatever a remote says."""
    return min(0.0, logprob)
