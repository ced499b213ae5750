"""Durations and times as Ollama writes them, which are those of Go."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from headrace.errors import RequestError

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_WHOLE = re.compile(rf"[-+]?(?:{_PART.pattern})+")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?")
_MOST_SECONDS = 100 * 365 * 86400.0

NEVER = datetime(9999, 1, 1, tzinfo=timezone.utc)
"""When a model goes that stays for good; clients show a time this far away as forever."""


def seconds(value: float | str | None) -> float | None:
    """A `keep_alive` in seconds, negative for good; numbers are seconds already. None where none is given.

    Raises RequestError for a text that is no duration.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if value == "":
            return None
        value = _parse(value)
    return -1.0 if value < 0 or value > _MOST_SECONDS else float(value)


def _parse(text: str) -> float:
    if len(text) <= 64 and _NUMBER.fullmatch(text):
        return float(text)
    if len(text) > 64 or not _WHOLE.fullmatch(text):
        raise RequestError(
            f"Invalid 'keep_alive': expected seconds or a duration such as \"10m\", got {text!r:.60}.",
            "keep_alive",
        )
    size = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return -size if text.startswith("-") else size


def timestamp(at: float) -> str:
    """Seconds since 1970 in the form of RFC 3339."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat().replace("+00:00", "Z")
