"""HTTP to one remote: a pool of connections, and responses as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from headrace.gateway.deadline import Deadline
from headrace.gateway.errors import UnavailableError
from headrace.gateway.remotes.dialling import Dialler, ProxyError, why_not
from headrace.gateway.remotes.errors import RemoteError, cut_off, garbage, timed_out, unreachable
from headrace.gateway.remotes.http_connection import BrokenHttpError, HttpConnection, head_of

_KEEP_ALIVE = 60.0
"""Seconds for which an unused connection stays open."""
Request = tuple[bytes, bytes]
"""Head and body."""
_SETTLE = 0.1
"""Seconds within which a response ends that has said all: else its connection is not used again."""


class Response:
    """What comes of a request that was sent: its status with `begun`, its body with `read`."""

    def __init__(
        self, name: str, connection: HttpConnection, pool: Connections, request: Request, kept: bool
    ):
        """`kept`: the connection had been used before; where it proves closed, another one is tried."""
        self._name = name
        self._connection = connection
        self._pool = pool
        self._request = request
        self._kept = kept
        self._loop = asyncio.get_running_loop()
        self._failed: RemoteError | None = None
        self._left = False
        """The connection may be another response's by now."""

    @property
    def status(self) -> int:
        """As in HTTP."""
        return self._connection.status

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in small letters."""
        return self._connection.headers

    async def begun(self) -> None:
        """Waits for the status and the headers. Raises RemoteError."""
        try:
            try:
                await self._connection.begun()
            except OSError:
                if not self._kept or self._connection.heard:
                    raise
                # The other side closed it while it was not used: no sign of a remote that fails.
                self._kept = False
                self._connection = await self._pool.instead_of(self._connection, self._request)
                if self._failed is not None:
                    raise self._failed from None
                await self._connection.begun()
        except OSError:
            raise cut_off(self._name) from None
        except BrokenHttpError:
            raise garbage(self._name, "broken HTTP") from None

    async def read(self) -> bytes:
        """What has come next; empty at the end. Raises RemoteError."""
        try:
            return await self._connection.read()
        except OSError:
            raise cut_off(self._name) from None
        except BrokenHttpError:
            raise garbage(self._name, "broken HTTP") from None

    async def read_all(self, most: int, seconds: float) -> bytes:
        """The body's first bytes, at most so many, or what there was before the time was over."""
        body = b""
        timer = self._loop.call_later(seconds, self.fail, timed_out(self._name, "did not end", seconds))
        try:
            while len(body) < most and (chunk := await self.read()):
                body += chunk
        except RemoteError:
            pass
        finally:
            timer.cancel()
        return body[:most]

    async def whole(self, most: int, seconds: float) -> bytes:
        """All of the body. Raises RemoteError where it takes longer than `seconds` or is more than `most`."""
        chunks, size = list[bytes](), 0
        late = timed_out(self._name, "did not send its whole answer", seconds)
        timer = self._loop.call_later(seconds, self.fail, late)
        try:
            while chunk := await self.read():
                chunks.append(chunk)
                size += len(chunk)
                if size > most:
                    raise garbage(self._name, "far more than its answer can need")
        finally:
            timer.cancel()
        return b"".join(chunks)

    def fail(self, error: RemoteError) -> None:
        """Closes the connection; whoever waits in `begun` or `read` gets the error."""
        if not self._left:
            self._failed = error
            self._connection.fail(error)

    def close(self) -> None:
        """Gives the connection back where the response had ended, else closes it."""
        if not self._left:
            self._left = True
            self._pool.take_back(self._connection)

    async def settle(self) -> None:
        """Waits for the end, which is to be there by now, so that the connection can be used again."""
        late = timed_out(self._name, "did not end its response", _SETTLE)
        timer = self._loop.call_later(_SETTLE, self.fail, late)
        try:
            while not self._left and await self._connection.read():
                pass
        except (OSError, BrokenHttpError, RemoteError):
            pass
        finally:
            timer.cancel()
            self.close()


class Connections:
    """The pool. Belongs to the event loop in which it is first used."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str], connect_timeout: float):
        """`headers` may hold the key."""
        self._name = name
        self._connect_timeout = connect_timeout
        self._dialler = Dialler(name, url, connect_timeout)
        headers = {**headers, **self._dialler.credentials}
        self._head = head_of("POST", self._dialler.path, self._dialler.host, headers)
        self._unused: list[tuple[float, HttpConnection]] = []
        """With the times from which on they were, the last one at the end."""
        self._used: set[HttpConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    async def post(self, body: bytes, seconds: float) -> Response:
        """Sends the body, and waits for a response to begin, at most so long. Raises RemoteError."""
        response: Response | None = None
        try:
            async with Deadline(seconds):
                response = await self.send(body)
                await response.begun()
                return response
        except BaseException as error:
            if response is not None:
                response.close()
            if isinstance(error, UnavailableError) and not isinstance(error, RemoteError):
                raise timed_out(self._name, "did not begin its answer", seconds) from None
            raise

    async def send(self, body: bytes) -> Response:
        """Sends the body, over a new connection where none is kept. Raises RemoteError."""
        request = b"%scontent-length: %d\r\n\r\n" % (self._head, len(body)), body
        kept = self._kept()
        connection = await self._connected() if kept is None else kept
        self._used.add(connection)
        connection.send(*request)
        return Response(self._name, connection, self, request, kept=kept is not None)

    async def instead_of(self, closed: HttpConnection, request: Request) -> HttpConnection:
        """A new connection, over which the request has been sent again. Raises RemoteError."""
        self._used.discard(closed)
        closed.close()
        connection = await self._connected()
        self._used.add(connection)
        connection.send(*request)
        return connection

    async def _connected(self) -> HttpConnection:
        """A new one. Raises RemoteError, which never holds the address: that is the operator's to know."""
        try:
            return await asyncio.wait_for(self._dialler.connect(), self._connect_timeout)
        except (asyncio.TimeoutError, TimeoutError):
            self._dialler.warn_of_proxy("no connection came about in time")
            way = " by its proxy" if self._dialler.by_proxy else ""
            raise timed_out(self._name, f"could not be reached{way}", self._connect_timeout) from None
        except OSError as error:
            raise unreachable(self._name, why_not(error)) from None
        except ProxyError as error:
            self._dialler.warn_of_proxy(str(error))
            raise unreachable(self._name, str(error)) from None

    def _kept(self) -> HttpConnection | None:
        """The one that was used last, for it is the least likely to have been closed meanwhile."""
        while self._unused:
            _, connection = self._unused.pop()
            if connection.reusable:
                return connection
        return None

    def take_back(self, connection: HttpConnection) -> None:
        """Its exchange is over. Where that had come to its end, the connection waits for another."""
        self._used.discard(connection)
        if not connection.reusable:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        self._unused.append((loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(_KEEP_ALIVE, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Closes what was not used for long."""
        self._sweeper = None
        old = loop.time() - _KEEP_ALIVE
        while self._unused and self._unused[0][0] <= old:
            self._unused.pop(0)[1].close()
        if self._unused:
            self._sweeper = loop.call_at(self._unused[0][0] + _KEEP_ALIVE, self._sweep, loop)

    async def close(self) -> None:
        """Closes all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in (*self._used, *(connection for _, connection in self._unused)):
            connection.close()
        self._unused.clear()
        self._used.clear()
