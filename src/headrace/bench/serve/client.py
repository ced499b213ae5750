"""An HTTP client that costs next to nothing: asyncio protocols on uvloop, parsed by httptools.

What comes is timed when it is read from the socket, before it is parsed. There is no task to wake for a
chunk, and no queue between the socket and the record.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

import httptools

from headrace.bench.serve.answer import Answer
from headrace.bench.serve.record import Record
from headrace.bench.serve.target import Target

now = time.perf_counter


class Client:
    """Sends requests on as many connections as they need at the same time, and uses each again."""

    def __init__(self, target: Target, timeout: float) -> None:
        """`timeout` is the seconds that an answer may take."""
        self.target = target
        self._timeout = timeout
        self._idle: list[Connection] = []

    async def send(self, request: bytes, record: Record) -> str:
        """Fills the record, in which failures are too; the answer's text. `record.started` is set."""
        try:
            connection = await self._connection()
        except (OSError, TimeoutError, asyncio.TimeoutError) as error:
            record.fail("connect", str(error) or "timed out", now())
            return ""
        answer = Answer(record)
        clock = asyncio.get_running_loop().call_later(self._timeout, connection.time_out)
        try:
            await connection.exchange(request, answer)
        finally:
            clock.cancel()
        if connection.usable:
            self._idle.append(connection)
        return answer.text

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        address = self.target.address
        opening = asyncio.get_running_loop().create_connection(
            Connection, address.host, address.port, ssl=address.secure or None
        )
        _, connection = await asyncio.wait_for(opening, self._timeout)
        return connection

    def close(self) -> None:
        """Closes what is idle."""
        for connection in self._idle:
            connection.close()


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection; one exchange at a time."""

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._read_at = 0.0
        self.usable = True
        """Whether another request may be sent."""

    async def exchange(self, request: bytes, answer: Answer) -> None:
        """Sends the request and returns when its answer is complete or can no longer become so."""
        self._parser = httptools.HttpResponseParser(self)
        self._answer = answer
        self._done = asyncio.get_running_loop().create_future()
        answer.record.sent = now()
        self._transport.write(request)
        try:
            await self._done
        except asyncio.CancelledError:
            self.close()
            raise

    def time_out(self) -> None:
        """Gives the exchange up."""
        if self._answer is not None:
            self._answer.record.fail("timeout", "the answer took too long", now())
        self.close()

    def close(self) -> None:
        self.usable = False
        self._transport.abort()

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read_at = now()
        if self._answer is None:  # nothing was asked: a server that says why it closes
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._answer.record.fail("malformed", f"no HTTP: {error}", now())
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._end(f"the server closed the connection{f': {exc}' if exc else ''}")

    # httptools calls these

    def on_headers_complete(self) -> None:
        if self._answer is not None:
            self._answer.begin(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        if self._answer is not None:
            self._answer.feed(body, self._read_at)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        self._end()

    def _end(self, failure: str = "") -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.end(now(), failure)
            if not self._done.done():
                self._done.set_result(None)
