"""Errors as an Anthropic client expects them."""

from __future__ import annotations

import msgspec

from headrace.errors import RequestError
from headrace.gateway.field_names import in_own_names
from headrace.gateway.json_line import encode

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_NAMES = {
    "response_format.json_schema.schema": "output_config.format.schema",
    "stop": "stop_sequences",
}


class ErrorDetail(msgspec.Struct):
    """The inside of an error."""

    type: str
    message: str


class ErrorBody(msgspec.Struct):
    """An error as it is sent, as the body of a response or as an event of a stream."""

    error: ErrorDetail
    type: str = "error"


def error_json(error: RequestError) -> bytes:
    """The error as JSON; the message names the field, for this dialect has no other place for it."""
    told = in_own_names(error, _NAMES)
    kind = _TYPES.get(error.status, "invalid_request_error")
    return encode(ErrorBody(ErrorDetail(kind, str(told))))
