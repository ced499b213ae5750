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


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. One of more than `limit` bytes is refused before it is held, chunked or not.

    So is one that the bodies of other requests leave no room for (429), and a compressed one (415).

    Once the refusal is sent, the server drops what else of the body arrives, so a client that writes all
    before it reads still gets its answer.
    """
    _check_headers(scope, limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        counted(scope, len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _check_headers(scope: Scope, limit: int) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise _too_large(limit)
        if name == b"content-encoding" and value.lower() != b"identity":
            given = value.decode("latin-1")
            raise RequestError(
                f"Invalid 'content-encoding': bodies are read as they are, and not {given!r:.40}.",
                "content-encoding",
                status=415,
                code="unsupported_content_encoding",
            )


def _too_large(limit: int) -> RequestError:
    told = f"The body is too large: at most {limit} bytes are accepted."
    return RequestError(told, status=413, code="request_too_large")


def decode(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """The body as a checked struct. Raises RequestError that names the field and what was expected."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise from_decoding(error) from None
