"""One connection over HTTP/1.1, which carries one exchange after another: a request, and what comes of it.

A client library would do, but for time: a general one runs some two thousand lines of Python for a request,
of which a processor that has other things to do has none in its caches. Here httptools reads the responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import httptools

_MOST_WAITING = 2**18
"""Bytes of a body that may wait to be read; then nothing more is received."""
_MOST_HEADERS = 2**16
"""Bytes of a response before its body."""


class BrokenHttpError(Exception):
    """What came is no response as HTTP has it."""


class HttpConnection(asyncio.Protocol):
    """Belongs to one event loop. No two tasks wait at once, but any may: nothing here belongs to a task.

    After `send`, `begun` waits for the status, and `read` gives the body. `reusable` says whether another
    exchange may follow.
    """

    def __init__(self) -> None:
        self.status = 0
        """Of the response, once it has begun."""
        self.headers: dict[str, str] = {}
        """Of the response, by names in small letters."""
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        """Of the response that is awaited, or being read; None between exchanges."""
        self._chunks: list[bytes] = []
        self._waiting_bytes = 0
        self._header_bytes = 0
        self._has_begun = False
        self._complete = False
        self._kept = False
        """The other side keeps the connection."""
        self._error: BaseException | None = None
        self._ended = False
        """The other side sends no more, or the connection is lost."""
        self._waiter: asyncio.Future[None] | None = None

    # what its user calls

    @property
    def reusable(self) -> bool:
        """It is open, and nothing of an exchange is left, but for a little that nobody read."""
        over = self._complete or self._parser is None
        return over and self._kept and not self._ended and self._waiting_bytes <= _MOST_WAITING

    @property
    def heard(self) -> bool:
        """Some of a response has come since `send`."""
        return self._header_bytes > 0

    def send(self, head: bytes, body: bytes) -> None:
        """Begins an exchange, after the last one has ended."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._chunks.clear()
        self._waiting_bytes = self._header_bytes = 0
        self._has_begun = self._complete = self._kept = False
        self._transport.writelines((head, body))

    async def begun(self) -> None:
        """Waits for the status and the headers. Raises OSError, BrokenHttpError or what `fail` was given."""
        while not self._has_begun:
            if self._error is not None:
                raise self._error
            await self._come()

    async def read(self) -> bytes:
        """What of the body has come; waits for some, and is empty at its end. Raises as `begun` does."""
        while not self._chunks:
            if self._complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._come()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        if self._waiting_bytes > _MOST_WAITING and self._transport is not None:
            self._transport.resume_reading()
        self._waiting_bytes = 0
        return data

    def fail(self, error: BaseException) -> None:
        """Closes it; whoever waits gets the error."""
        self._error = error
        self._wake()
        self.close()

    def close(self) -> None:
        """Closes it; what was not sent by now is not sent."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    async def _come(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._kept = True

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._complete:
            self.close()  # nothing was asked
            return
        if not self._has_begun:
            self._header_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, BrokenHttpError):
            self.fail(BrokenHttpError())
            return
        if not self._has_begun and self._header_bytes > _MOST_HEADERS:
            self.fail(BrokenHttpError())

    def eof_received(self) -> bool:
        self._other_side_ended(ConnectionResetError())
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._other_side_ended(error or ConnectionResetError())

    def _other_side_ended(self, error: Exception) -> None:
        """A body of which neither length nor chunks are told ends with the connection."""
        self._ended = True
        if self._has_begun and not self._complete and not self._length_is_told:
            self._complete = True
        elif self._error is None:
            self._error = error
        self._wake()

    @property
    def _length_is_told(self) -> bool:
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    # what the parser calls

    def on_message_begin(self) -> None:
        if self._complete:
            raise BrokenHttpError  # a second response
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        text = value.decode("latin-1")
        key = name.decode("latin-1").lower()
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:  # another response follows this one
            return
        self.status = status
        self._has_begun = True
        self._wake()

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        before, self._waiting_bytes = self._waiting_bytes, self._waiting_bytes + len(data)
        if before <= _MOST_WAITING < self._waiting_bytes and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if not self._has_begun:
            return
        assert self._parser is not None
        self._complete = True
        self._kept = self._parser.should_keep_alive()
        self._wake()


def head_of(method: str, path: str, host: str, headers: Mapping[str, str]) -> bytes:
    """A request's first line and headers; what ends them is to follow."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")
