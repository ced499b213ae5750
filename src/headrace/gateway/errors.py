"""Errors as an OpenAI client expects them: a JSON object that names the field and says what was expected."""

from __future__ import annotations

import logging
import re
import secrets

import msgspec

from headrace.errors import HeadraceError, RequestError
from headrace.gateway.json_line import encode

log = logging.getLogger("headrace.gateway")

_TYPES = {
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_AT_PATH = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


class UnavailableError(RequestError):
    """The request is fine, but the server cannot take it now; the client may retry after some seconds."""

    def __init__(self, message: str, *, status: int, code: str, retry_after: int | None = None):
        super().__init__(message, status=status, code=code)
        self.retry_after = retry_after


class UnauthorizedError(RequestError):
    """The request needs a key that is known here; 401."""

    def __init__(self, message: str):
        super().__init__(message, status=401, code="invalid_api_key")


class HeadersError(RequestError):
    """One that says in `headers` what its response has, Retry-After too."""

    headers: list[tuple[bytes, bytes]]


def missing(field: str) -> RequestError:
    """The refusal of a request that lacks a field."""
    return RequestError(f"Missing required field '{field}'.", field)


def unsupported(field: str) -> RequestError:
    """The refusal of a field that means something which is not served."""
    return RequestError(f"'{field}' is not supported; leave it out.", field, code="unsupported_value")


class ErrorDetail(msgspec.Struct):
    """The inside of an error, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """An error as it is sent, as the body of a response or as an event of a stream."""

    error: ErrorDetail


def error_json(error: RequestError) -> bytes:
    """The error as JSON."""
    kind = _TYPES.get(error.status, "invalid_request_error")
    return encode(ErrorBody(ErrorDetail(str(error), kind, error.field, error.code)))


def error_headers(error: RequestError) -> list[tuple[bytes, bytes]]:
    """Headers that the error adds to its response."""
    if isinstance(error, HeadersError):
        return error.headers
    if isinstance(error, UnavailableError) and error.retry_after is not None:
        return [(b"retry-after", b"%d" % error.retry_after)]
    if isinstance(error, UnauthorizedError):
        return [(b"www-authenticate", b'Bearer realm="headrace"')]
    return []


def from_decoding(error: msgspec.DecodeError | RecursionError) -> RequestError:
    """Says in a client's terms why a body could not be decoded."""
    if isinstance(error, RecursionError):
        return RequestError("The body is not valid JSON for this endpoint: it is nested too deeply.")
    if not isinstance(error, msgspec.ValidationError):
        return RequestError(f"The body is not valid JSON: {str(error).removeprefix('JSON is malformed: ')}.")
    match = _AT_PATH.fullmatch(str(error))
    assert match is not None
    what, field = match["what"], (match["path"] or "$").removeprefix("$").removeprefix(".")
    if lacking := _MISSING.fullmatch(what):
        field = f"{field}.{lacking['name']}" if field else lacking["name"]
        return missing(field)
    what = what.replace("`", "")
    what = what[:1].lower() + what[1:]
    where = f"Invalid '{field}'" if field else "Invalid body"
    return RequestError(f"{where}: {what}.", field or None)


def unavailable(error: HeadraceError) -> UnavailableError:
    """What an engine's failure is to a client: nothing wrong with the request, worth another try."""
    return UnavailableError(str(error), status=503, code="engine_unavailable", retry_after=1)


def internal(error: BaseException) -> RequestError:
    """Logs an unforeseen error with its traceback, and tells the client only where to find it."""
    number = secrets.token_hex(6)
    log.error("internal error %s", number, exc_info=error)
    return RequestError(
        f"Internal error; the server's log has it as {number}.", status=500, code="internal_error"
    )


def as_request_error(error: Exception) -> RequestError:
    """Any error in the terms of a client."""
    if isinstance(error, RequestError):
        return error
    return unavailable(error) if isinstance(error, HeadraceError) else internal(error)
