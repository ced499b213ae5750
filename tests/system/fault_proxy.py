"""Stands between a gateway and a remote, and spoils a share of the answers in one way or another."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_PAUSE = 5.0
"""Seconds of a stall: longer than anyone waits."""


class FaultProxy:
    """One request a connection. What is done to it is drawn with a seed."""

    def __init__(self, host: str, port: int, share: float, seed: int = 0) -> None:
        """`share` of the requests are spoilt."""
        self.share = share
        self.done: Counter[str] = Counter()
        """How many requests were let through, and how many suffered which fault."""
        self.url = ""
        self._upstream = host, port
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[object]] = set()
        self._faults: dict[str, Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]] = {
            "reset": self._reset,
            "closed": self._closed,
            "stalled": self._stalled,
            "429": self._limited,
            "500": self._failed,
            "garbage": self._garbage,
            "cut": self._cut,
            "reset in the middle": self._reset_in_the_middle,
            "stalled in the middle": self._stalled_in_the_middle,
        }

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FaultProxy]:
        """Listens on a free port until the block ends."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                request = await _read(reader)
                fault = "none"
                if self._random.random() < self.share:
                    fault = self._random.choice(list(self._faults))
                self.done[fault] += 1
                await (self._through if fault == "none" else self._faults[fault])(request, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _through(self, request: bytes, writer: asyncio.StreamWriter, most: int | None = None) -> None:
        """Hands the answer on, or its first bytes."""
        reader, upstream = await asyncio.open_connection(*self._upstream)
        try:
            upstream.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            while (most is None or most > 0) and (data := await reader.read(2**16 if most is None else most)):
                most = None if most is None else most - len(data)
                writer.write(data)
                await writer.drain()
        finally:
            upstream.close()

    async def _some(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        """The head and a part of the body, mostly."""
        await self._through(request, writer, self._random.randrange(100, 3000))

    async def _reset(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def _closed(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        pass

    async def _stalled(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(_PAUSE)

    async def _limited(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        await _answer(writer, 429, b'{"error": {"message": "slow down"}}', b"retry-after: 0\r\n")

    async def _failed(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        await _answer(writer, self._random.choice([500, 502, 503]), b"<h1>Oh</h1>")

    async def _garbage(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        data = self._random.randbytes(500)
        await _answer(writer, 200, b"data: " + data, b"content-type: text/event-stream\r\n")

    async def _cut(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        await self._some(request, writer)

    async def _reset_in_the_middle(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        await self._some(request, writer)
        writer.transport.abort()

    async def _stalled_in_the_middle(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        await self._some(request, writer)
        await asyncio.sleep(_PAUSE)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """A whole request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    return head + await reader.readexactly(length)


async def _answer(writer: asyncio.StreamWriter, status: int, body: bytes, headers: bytes = b"") -> None:
    writer.write(
        b"HTTP/1.1 %d Told\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n"
        % (status, headers, len(body))
    )
    writer.write(body)
    await writer.drain()
