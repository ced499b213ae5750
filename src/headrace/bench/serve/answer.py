"""Reads one answer from the bytes that a server streams, and notes when its pieces came.

It is fed what the connection brings, cut anywhere: lines of server-sent events whose data are OpenAI's
chunks. Decoding a chunk into typed structs that skip what is not measured takes about a microsecond.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from headrace.bench.serve.record import Record


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Error(Struct):
    message: str


class _ErrorBody(Struct):
    error: _Error


_decode = msgspec.json.Decoder(_Chunk).decode
_SHOWN = 300
"""Characters of what a server says that are worth showing."""


class Answer:
    """Fills a record. `text` is the answer's whole text, for a conversation to go on from."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._status = 200
        self._rest = b""
        self._pieces: list[str] = []
        self._finished = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def begin(self, status: int) -> None:
        """The response's status has come."""
        self._status = status

    def feed(self, body: bytes, now: float) -> None:
        """Takes the body's next bytes, which came at `now`."""
        if self._status != 200:
            self._rest += body
            return
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def end(self, now: float, failure: str = "") -> None:
        """Nothing more comes: the response is over, or was cut off for the reason given."""
        record = self.record
        if self._status != 200:
            record.fail(f"http_{self._status}", told(self._rest), now)
        elif failure:
            record.fail("disconnected", failure, now)
        elif not self._finished:
            record.fail("incomplete", "the stream ended without a finish reason", now)
        elif not record.output_tokens:  # a server that tells no usage
            record.output_tokens = len(record.chunk_times)

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            return
        record = self.record
        try:
            chunk = _decode(data)
        except msgspec.DecodeError as error:
            record.fail("malformed", f"{error}: {data[:_SHOWN].decode(errors='replace')}", now)
            return
        if chunk.error is not None:
            record.fail("error_event", told(data), now)
        for choice in chunk.choices:
            text = choice.text if choice.delta is None else choice.delta.content
            if text:
                record.chunk_times.append(now)
                self._pieces.append(text)
            if choice.finish_reason is not None:
                self._finished = True
            if text or choice.finish_reason is not None:
                record.ended = now
        if chunk.usage is not None:
            self._count(chunk.usage)

    def _count(self, usage: _Usage) -> None:
        self.record.input_tokens = usage.prompt_tokens
        self.record.output_tokens = usage.completion_tokens
        details = usage.prompt_tokens_details
        self.record.cached_tokens = (details.cached_tokens if details else None) or 0


def told(body: bytes) -> str:
    """The message of an error in OpenAI's shape, else the beginning of what the server said."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.message[:_SHOWN]
    except msgspec.DecodeError:
        return body[:_SHOWN].decode(errors="replace")
