"""In whose words a path's errors are told, where no endpoint has seen the request."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.types import Receive, Scope, Send

from headrace.errors import RequestError
from headrace.gateway.anthropic.errors import error_json as anthropic_json
from headrace.gateway.connection import send_error
from headrace.gateway.errors import error_json
from headrace.gateway.front import Refuse
from headrace.gateway.ollama.answers import error_json as ollama_json
from headrace.gateway.request_log import Observer, RequestRecord

_WORDS: dict[str, Callable[[RequestError], bytes]] = {"/v1/messages": anthropic_json, "/api/": ollama_json}
"""By how a path begins; OpenAI's for all others."""


def error_body(path: str, error: RequestError) -> bytes:
    """The error's body as the path's clients expect it."""
    for start, write in _WORDS.items():
        if path.startswith(start):
            return write(error)
    return error_json(error)


async def refuse(scope: Scope, receive: Receive, send: Send, error: RequestError) -> None:
    """Answers with the error."""
    await send_error(send, error, error_body(scope["path"], error))


def refusing(observers: Callable[[], Iterable[Observer]]) -> Refuse:
    """Answers with an error where no endpoint will see the request, and tells whoever observes requests."""

    async def refuse_and_tell(scope: Scope, receive: Receive, send: Send, error: RequestError) -> None:
        record = RequestRecord.of_unknown(scope)
        await refuse(scope, receive, send, error)
        for observe in observers():
            observe(record, error.status)

    return refuse_and_tell
