"""Reading a request's body, and never more of it than the limit."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.types import Receive, Scope

from headrace.errors import RequestError
from headrace.gateway.bodies import counted
from headrace.gateway.errors import from_decoding

Body = TypeVar("Body")


CLIENT_GONE = 499
"""What the metrics call a request whose client did not wait for the answer (after nginx)."""


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
    return 0


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. One of more than `limit` bytes is refused before it is held, chunked or not.

    So is one that the bodies of other requests leave no room for (429).

    Once the refusal is sent, the server drops what else of the body arrives, so a client that writes all
    before it reads still gets its answer.
    """
    too_large = RequestError(
        f"The body is too large: at most {limit} bytes are accepted.", status=413, code="request_too_large"
    )
    if _declared_length(scope) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise too_large
        counted(scope, len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def decode(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """The body as a checked struct. Raises RequestError that names the field and what was expected."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise from_decoding(error) from None
