"""Endpoints that answer with one JSON object: read, check, do the work, and tell errors as all others do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.errors import RequestError
from headrace.gateway.body import CLIENT_GONE, ClientGoneError, decode, read_body
from headrace.gateway.connection import send_error, send_json, while_connected
from headrace.gateway.errors import as_request_error, error_json
from headrace.gateway.state import Gateway

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class WithHeaders:
    """An answer, and headers that its response has besides."""

    answer: object
    headers: list[tuple[bytes, bytes]]


class JsonEndpoint(Generic[Body]):
    """An ASGI application around one piece of work that takes a checked body."""

    def __init__(
        self,
        gateway: Gateway,
        body: type[Body],
        work: Callable[[Scope, Body], Awaitable[object]],
        error: Callable[[RequestError], bytes] = error_json,
    ) -> None:
        """The work is cancelled when the client goes away; what it raises becomes an error's answer.

        It gives what is written as JSON, or that WithHeaders.

        `error` writes an error's body.
        """
        self._gateway = gateway
        self.body = body
        self._decoder = msgspec.json.Decoder(body)
        self._work = work
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500
        try:
            raw = await read_body(scope, receive, self._gateway.max_body_bytes)
            async with while_connected(receive):
                answer = await self._work(scope, decode(self._decoder, raw))
            status = 200
            if not isinstance(answer, WithHeaders):
                answer = WithHeaders(answer, [])
            await send_json(send, status, msgspec.json.encode(answer.answer), answer.headers)
        except ClientGoneError:
            status = CLIENT_GONE
        except Exception as error:
            told = as_request_error(error)
            status = told.status
            await send_error(send, told, self._error(told))
        finally:
            self._gateway.metrics.requests.labels(scope["path"], str(status)).inc()
