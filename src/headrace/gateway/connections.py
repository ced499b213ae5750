"""Connections that cannot wear the server out: each is bounded in time, in headers, and in number.

A client that sends its request too slowly is answered 408, one that does not read its answer is cut off, and
neither holds up others: the event loop looks at all connections twice a second.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headrace.errors import RequestError
from headrace.gateway.errors import error_json

_TICKS = 5
"""Of uvicorn's ticks, a tenth of a second each, between two looks at all connections."""
_SLOWEST_BODY = 16 * 1024
"""Bytes a second that a body has to come with, once its time is over."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may take. Times are in seconds."""

    connections: int = 4096
    """Open at the same time; a further one is answered 503."""
    header_bytes: int = 32 * 1024
    """Of a request's line and headers."""
    header_seconds: float = 20.0
    """From the first byte of a request, or the connection's beginning, to the end of its headers."""
    body_seconds: float = 30.0
    """For a body; a longer one has more, at 16 KiB a second."""
    idle_seconds: float = 75.0
    """Between two requests."""
    write_seconds: float = 60.0
    """For a client to read some of an answer that waits for it."""


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol within the limits; `limits` is set by a subclass, see `bounded`."""

    limits: ConnectionLimits

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._body_bytes = 0
        self._receiving_since: float | None = time.monotonic()
        """Since when a request is on its way in; None where none is."""
        self._in_head = True
        self._stalled_since: float | None = None
        """Since when the client reads nothing of what waits for it."""
        self._refusal: RequestError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(
                RequestError(
                    f"The server has {self.limits.connections} connections already; try again later.",
                    status=503,
                    code="too_many_connections",
                )
            )

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._receiving_since is None:
            self._receiving_since = time.monotonic()
        super().data_received(data)
        if self._in_head:
            # Only now, for what is inside an unfinished header is not told by the parser.
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.header_bytes:
                self._refuse(self._headers_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        if self._receiving_since is None:
            self._receiving_since = time.monotonic()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        if self._head_bytes + len(self.url) > self.limits.header_bytes:
            self._refusal = self._headers_too_large()
            raise ValueError  # the parser ends here, and calls send_400_response
        self._in_head = False
        self._body_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._receiving_since = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._stalled_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or RequestError("This is not a valid HTTP request."))

    def _headers_too_large(self) -> RequestError:
        return RequestError(
            f"The headers are too large: at most {self.limits.header_bytes} bytes are accepted.",
            status=431,
            code="headers_too_large",
        )

    def _refuse(self, error: RequestError) -> None:
        """Answers what is no request for the application, and closes."""
        if self.cycle is None or not self.cycle.response_started:
            body = error_json(error)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[error.status] + head % len(body) + body)
        self.transport.close()

    def look(self, now: float) -> None:
        """Ends the connection where its time is over."""
        if self.transport.is_closing():
            # What is still to be sent keeps it open; a client that never reads would do so for ever.
            if self._stalled_since is None:
                self._stalled_since = now
            elif now - self._stalled_since > self.limits.write_seconds:
                self.transport.abort()
        elif self._stalled_since is not None:
            if now - self._stalled_since > self.limits.write_seconds:
                self.transport.abort()
        elif self._receiving_since is not None and not self.flow.read_paused:
            taken = now - self._receiving_since
            allowed = self.limits.header_seconds
            if not self._in_head:
                allowed = self.limits.body_seconds + self._body_bytes / _SLOWEST_BODY
            if taken > allowed:
                self._refuse(
                    RequestError("The request did not arrive in time.", status=408, code="request_too_slow")
                )


def bounded(limits: ConnectionLimits) -> type[BoundedProtocol]:
    """The protocol with these limits, as uvicorn wants it: a class."""
    return type("Protocol", (BoundedProtocol,), {"limits": limits})


class BoundedServer(uvicorn.Server):
    """Uvicorn, which looks at its connections' times as it ticks."""

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.look(now)
        return await super().on_tick(counter)
