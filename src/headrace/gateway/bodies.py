"""A bound on the bytes of request bodies that are in memory at the same time.

A body counts from its first byte until its request has ended, for what it was decoded to stays that long.
Only what has arrived counts: a client cannot take room by announcing a body that it never sends.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.gateway.errors import UnavailableError

BODIES_BYTES = 256 * 2**20
_KEY = "headrace.body"


class Bodies:
    """What all bodies take together."""

    def __init__(self, limit: int = BODIES_BYTES):
        """`limit` in bytes."""
        self.limit = limit
        self.held = 0


class Body:
    """The part of one request."""

    def __init__(self, bodies: Bodies):
        self._bodies = bodies
        self._held = 0

    def take(self, size: int) -> None:
        """Counts so many bytes more. Raises UnavailableError, 429, where there is no room beside the others.

        A body that is alone always has room: its own limit is another.
        """
        others = self._bodies.held - self._held
        if others and self._bodies.held + size > self._bodies.limit:
            raise UnavailableError(
                f"The server holds requests of {self._bodies.limit} bytes already, all it may; try again.",
                status=429,
                code="body_memory_full",
                retry_after=1,
            )
        self._bodies.held += size
        self._held += size

    def release(self) -> None:
        """The request has ended."""
        self._bodies.held -= self._held
        self._held = 0


class CountedBodies:
    """An ASGI application around another whose requests' bodies are counted by `read_body`."""

    def __init__(self, app: ASGIApp, bodies: Callable[[], Bodies]):
        self._app = app
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = scope[_KEY] = Body(self._bodies())
        try:
            await self._app(scope, receive, send)
        finally:
            body.release()


def counted(scope: Scope, size: int) -> None:
    """So many bytes of the request's body have arrived. Raises as `Body.take`.

    Not counted are requests of this very process, such as a batch's.
    """
    body = scope.get(_KEY)
    if isinstance(body, Body):
        body.take(size)
