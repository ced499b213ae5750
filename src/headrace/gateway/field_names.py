"""Errors that speak of a client's own fields, where the request was translated from another dialect."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import RequestError


def in_own_names(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The error with fields that are in OpenAI's chat words put into those of `names`; for its text only."""
    field = error.field
    if field is None:
        return error
    for theirs, own in names.items():
        rest = field.removeprefix(theirs)
        if field == theirs or (rest != field and rest[0] in ".["):
            message = str(error).replace(f"'{theirs}{rest}'", f"'{own}{rest}'")
            return RequestError(message, own + rest, status=error.status, code=error.code)
    return error
