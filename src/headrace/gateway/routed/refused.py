"""What a client is told where no model answers: the error, and who was tried before."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import RequestError
from headrace.gateway.errors import HeadersError, error_headers


class RefusedError(HeadersError):
    """The first error of the models that were tried; `headers` name them all, as an answer's do."""

    def __init__(
        self, error: RequestError, tried: Sequence[str], failures: Sequence[tuple[str, Exception]]
    ) -> None:
        """`tried`: the models that were asked, in order; `failures`: who could not answer, and why."""
        message = str(error)
        if len({name for name, _ in failures}) > 1:
            told = dict.fromkeys(f"{name} ({_short(why)})" for name, why in failures)
            message = f"{message.rstrip('.')}. Nobody answered: {', '.join(told)}."
        super().__init__(message, error.field, status=error.status, code=error.code)
        self.headers = error_headers(error)
        if tried:
            self.headers.append((b"x-headrace-attempts", ",".join(tried).encode()))


def _short(error: Exception) -> str:
    """A code, or a status: the messages may be long, and hold what a remote says."""
    if isinstance(error, RequestError):
        return error.code or str(error.status)
    return "engine_unavailable"
