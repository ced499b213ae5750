"""Asks an endpoint of this process, as a client would over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message


async def call(endpoint: ASGIApp, path: str, body: bytes, extra: Mapping[str, Any]) -> tuple[int, bytes]:
    """Status and body of the answer. `extra` is what the scope says besides.

    Cancelling the call cancels what it began.
    """
    sent = iter([{"type": "http.request", "body": body, "more_body": False}])
    status = 500
    chunks: list[bytes] = []

    async def receive() -> Message:
        message = next(sent, None)
        if message is None:  # the caller stays connected until it has its answer
            await asyncio.Event().wait()
            raise AssertionError
        return message

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            chunks.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
        "client": None,
        "server": None,
        **extra,
    }
    await endpoint(scope, receive, send)
    return status, b"".join(chunks)
