"""JSON that stays on one line, whatever a reader takes for the end of one.

JSON may hold U+0085, U+2028 and U+2029 as they are. Python's str.splitlines, and with it httpx's iter_lines
and the clients built on it, end a line at each of them, so that one in an answer would break it in two.
"""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode

_ESCAPES = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
"""In JSON such characters stand in strings only, so that escaping them changes no value."""


def encode(value: Any) -> bytes:
    """The value as JSON, without an end of line in it."""
    data = _encode(value)
    return data if data.isascii() else _escaped(data)


def _escaped(data: bytes) -> bytes:
    for character, escape in _ESCAPES:
        if character in data:
            data = data.replace(character, escape)
    return data
