"""The headers x-headrace-…: which a request may have. Any other is a slip of the pen, which changes nothing
that the client meant to change; so it is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from headrace.errors import RequestError
from headrace.gateway.deadline import HEADER as TIMEOUT
from headrace.gateway.prefix_access import EXPLAIN_HEADER
from headrace.gateway.prefix_api import SALT_HEADER
from headrace.routing.wants import HEADERS as WANTS

PREFIX = b"x-headrace-"
ASKING = frozenset({TIMEOUT, EXPLAIN_HEADER, SALT_HEADER, *(name.encode() for name in WANTS)})
"""Those that ask for something."""
TELLING = frozenset(
    PREFIX + name for name in (b"model", b"tier", b"policy", b"why", b"attempts", b"estimated-cost", b"cost")
)
"""Those of answers; a proxy or a client may send them back, and they mean nothing then."""
_KNOWN = ASKING | TELLING


def check_headers(names: Iterable[bytes]) -> None:
    """Raises RequestError, 400, for the first name that begins as ours do and is none; in lower case."""
    for name in names:
        if name.startswith(PREFIX) and name not in _KNOWN:
            raise _unknown(name.decode("latin-1"))


def _unknown(name: str) -> RequestError:
    known = sorted(each.decode() for each in ASKING)
    near = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.0)[0]
    return RequestError(
        f"There is no header '{name:.100}'; did you mean '{near}'? There are {', '.join(known)}.",
        name[:100],
        code="unknown_header",
    )
