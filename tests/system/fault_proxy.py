"""Stands between a gateway and a remote, and spoils a share of the answers in one way or another."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.remotes.upstream import Exchange, Script, Upstream

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
        self._faults: dict[str, Script] = {
            "reset": self._reset,
            "closed": Exchange.cut,
            "stalled": self._stalled,
            "429": self._limited,
            "500": self._failed,
            "garbage": self._garbage,
            "cut": self._some,
            "reset in the middle": self._reset_in_the_middle,
            "stalled in the middle": self._stalled_in_the_middle,
        }

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FaultProxy]:
        """Listens on a free port until the block ends."""
        async with Upstream(self._answer).serving() as listening:
            self.url = listening.url
            yield self

    async def _answer(self, exchange: Exchange) -> None:
        fault = "none"
        if self._random.random() < self.share:
            fault = self._random.choice(list(self._faults))
        self.done[fault] += 1
        with contextlib.suppress(OSError):
            await (self._through if fault == "none" else self._faults[fault])(exchange)
        await exchange.cut()

    async def _through(self, exchange: Exchange, most: int | None = None) -> None:
        """Hands the answer on, or its first bytes."""
        reader, upstream = await asyncio.open_connection(*self._upstream)
        try:
            lines = [
                f"{name}: {value}\r\n" for name, value in exchange.headers.items() if name != "connection"
            ]
            begin = f"POST {exchange.path} HTTP/1.1\r\n{''.join(lines)}connection: close\r\n\r\n"
            upstream.write(begin.encode("latin-1") + exchange.raw)
            while (most is None or most > 0) and (data := await reader.read(2**16 if most is None else most)):
                most = None if most is None else most - len(data)
                await exchange.send(data)
        finally:
            upstream.close()

    async def _some(self, exchange: Exchange) -> None:
        """The head and a part of the body, mostly."""
        await self._through(exchange, self._random.randrange(100, 3000))

    async def _reset(self, exchange: Exchange) -> None:
        exchange.writer.transport.abort()

    async def _stalled(self, exchange: Exchange) -> None:
        await asyncio.sleep(_PAUSE)

    async def _limited(self, exchange: Exchange) -> None:
        await exchange.answer(429, {"error": {"message": "slow down"}}, retry_after="0")

    async def _failed(self, exchange: Exchange) -> None:
        await exchange.answer(self._random.choice([500, 502, 503]), b"<h1>Oh</h1>")

    async def _garbage(self, exchange: Exchange) -> None:
        data = self._random.randbytes(500)
        await exchange.answer(200, b"data: " + data, content_type="text/event-stream")

    async def _reset_in_the_middle(self, exchange: Exchange) -> None:
        await self._some(exchange)
        await self._reset(exchange)

    async def _stalled_in_the_middle(self, exchange: Exchange) -> None:
        await self._some(exchange)
        await asyncio.sleep(_PAUSE)
