"""The client's end of a request: whether it is still there, and how it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive, Send

from headrace.errors import RequestError
from headrace.gateway.body import ClientGoneError
from headrace.gateway.errors import error_headers, error_json


class Client:
    """Whether somebody waits for an answer."""

    def __init__(self) -> None:
        self.waits = True

    def answered(self) -> None:
        """It has its whole answer. What is left to do is not cancelled when it goes away."""
        self.waits = False


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[Client]:
    """Runs the block; the moment the client goes away it is cancelled, and ClientGoneError raised.

    To be entered once the request's body has been read. A server may call a client gone as soon as it has its
    answer; where something is left to do then, the block is to say so before.
    """
    working = asyncio.current_task()
    assert working is not None
    client = Client()
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        if client.waits:
            gone = True
            working.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield client
    except asyncio.CancelledError:
        if not gone:
            raise
        uncancel = getattr(working, "uncancel", None)  # Python 3.11: this cancellation ends here
        if uncancel is not None:
            uncancel()
        raise ClientGoneError from None
    finally:
        watcher.cancel()


async def send_json(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """A whole JSON response."""
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": fixed + (headers or [])})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: RequestError, body: bytes | None = None) -> None:
    """An error as a whole response; `body` where it is not to have OpenAI's shape."""
    await send_json(send, error.status, body or error_json(error), error_headers(error))
