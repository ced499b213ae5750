"""What a server answers whose first workers have yet to join: that it waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.fleet import ReplicaHealth
from headrace.gateway.connection import send_json
from headrace.gateway.error_words import refusing
from headrace.gateway.errors import UnavailableError, error_headers
from headrace.gateway.front import Front
from headrace.gateway.json_line import encode
from headrace.gateway.loading import RETRY_SECONDS
from headrace.gateway.ollama.models import running
from headrace.gateway.server import Door, answering


def awaiting_workers(
    door: Door, models: Callable[[], Sequence[str]], workers: Callable[[], Sequence[ReplicaHealth]]
) -> AbstractAsyncContextManager[None]:
    """Tells clients for as long as the block runs which models want a worker, and which have joined.

    Nothing is answered but that: 503 at every path but /, which says that there is a server.
    """
    refuse = refusing(lambda: door.observers)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/":
            response = await running(Request(scope))
            await response(scope, receive, send)
            return
        wanted = " and ".join(f"'{name}'" for name in models())
        waits = f"waits for a worker that joins with the model {wanted}" if wanted else "begins just now"
        error = UnavailableError(
            f"The server {waits}; try again later.",
            status=503,
            code="no_worker",
            retry_after=RETRY_SECONDS,
        )
        if scope["path"] == "/health":
            told = {"status": "waiting", "message": str(error), "workers": workers()}
            await send_json(send, 503, encode(told), error_headers(error))
        else:
            await refuse(scope, receive, send, error)

    app: ASGIApp = Front(
        answer, door.callers, origins=door.options.origins, clock=time.monotonic, refuse=refuse
    )
    return answering(app, door.sock, door.options)
