"""What every request passes before its endpoint: an id, CORS, a key, known headers.

One call more for each chunk.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import RequestError
from headrace.gateway.callers import Caller, Callers
from headrace.gateway.connection import send_json
from headrace.gateway.errors import error_headers, error_json
from headrace.gateway.header_names import check_headers

OPEN_PATHS = frozenset({"/", "/health", "/docs", "/openapi.json"})
"""What a client may see without a key."""
_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
    (b"access-control-max-age", b"600"),
]
_EXPOSED = (
    b"x-request-id, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
    b"x-ratelimit-reset-tokens"
)

Headers = list[tuple[bytes, bytes]]
Refuse = Callable[[Scope, Receive, Send, RequestError], Awaitable[None]]


async def refuse_as_openai(scope: Scope, receive: Receive, send: Send, error: RequestError) -> None:
    """Answers with the error in OpenAI's shape."""
    await send_json(send, error.status, error_json(error), error_headers(error))


class Front:
    """An ASGI application around another.

    It leaves in the scope what endpoints need: "headrace.request_id", and "headrace.caller" on all paths but
    OPEN_PATHS.
    """

    def __init__(
        self,
        app: ASGIApp,
        callers: Callers,
        *,
        origins: Sequence[str] = (),
        clock: Callable[[], float],
        refuse: Refuse = refuse_as_openai,
    ):
        """`origins` are those whose pages may ask, "*" for all; `clock` is that of the callers' limits.

        `refuse` answers a request without a valid key, or with a header that is misspelt.
        """
        self._app = app
        self._callers = callers
        self._origins = frozenset(origin.encode() for origin in origins)
        self._clock = clock
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"])
        request_id = given.get(b"x-request-id", b"")
        if not _SANE_ID.fullmatch(request_id):
            request_id = b"req-" + secrets.token_hex(12).encode()
        scope["headrace.request_id"] = request_id.decode()
        headers: Headers = [(b"x-request-id", request_id), *self._cors(given.get(b"origin"))]
        if self._origins and scope["method"] == "OPTIONS" and b"access-control-request-method" in given:
            asked = given.get(b"access-control-request-headers", b"authorization, content-type")
            allowed = (b"access-control-allow-headers", asked)
            await send(
                {"type": "http.response.start", "status": 204, "headers": [*headers, *_PREFLIGHT, allowed]}
            )
            await send({"type": "http.response.body"})
            return
        send = self._with_headers(scope, headers, send)
        if scope["path"] not in OPEN_PATHS:
            try:
                self._callers.identify(scope)
                check_headers(given)
            except RequestError as error:
                await self._refuse(scope, receive, send, error)
                return
        await self._app(scope, receive, send)

    def _cors(self, origin: bytes | None) -> Headers:
        if origin is None or not self._origins:
            return []
        if b"*" in self._origins:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        if origin not in self._origins:
            return [(b"vary", b"origin")]
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]

    def _with_headers(self, scope: Scope, headers: Headers, send: Send) -> Send:
        def send_on(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                caller = scope.get("headrace.caller")
                limits = caller.limits.headers(self._clock()) if isinstance(caller, Caller) else []
                message = {**message, "headers": [*message.get("headers", ()), *headers, *limits]}
            return send(message)

        return send_on
