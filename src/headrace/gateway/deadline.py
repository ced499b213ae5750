"""A time by which a request must have ended; else it is cancelled, and its client told 504."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

from starlette.types import Scope

from headrace.errors import RequestError
from headrace.gateway.errors import UnavailableError

HEADER = b"x-headrace-timeout"


def asked_timeout(scope: Scope, longest: float | None) -> float | None:
    """Seconds that a request has: its own header's, at most the server's; None for no end.

    Raises RequestError where the header is no positive number.
    """
    for name, value in scope["headers"]:
        if name == HEADER:
            try:
                seconds = float(value)
            except ValueError:
                seconds = math.nan
            if not (math.isfinite(seconds) and seconds > 0):
                raise RequestError(
                    f"Invalid '{HEADER.decode()}': expected seconds, a number above 0, "
                    f"not {value.decode('latin-1')!r:.60}.",
                    HEADER.decode(),
                )
            return seconds if longest is None else min(seconds, longest)
    return longest


class Deadline:
    """`async with deadline:` cancels the block when the time is over, and raises UnavailableError, 504.

    Blocks of one deadline may be nested: the innermost raises, so that a stream within can tell its client.
    """

    def __init__(self, seconds: float | None):
        """`seconds` from now; None never ends."""
        self._seconds = seconds
        self._at = None if seconds is None else asyncio.get_running_loop().time() + seconds
        self._depth = 0
        self._timer: asyncio.TimerHandle | None = None
        self._working: asyncio.Task[object] | None = None
        self._expired = False

    def _expire(self) -> None:
        assert self._working is not None
        self._expired = True
        self._working.cancel()

    async def __aenter__(self) -> Deadline:
        self._depth += 1
        if self._depth == 1 and self._at is not None and not self._expired:
            self._working = asyncio.current_task()
            self._timer = asyncio.get_running_loop().call_at(self._at, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth and self._timer is not None:
            self._timer.cancel()
        if self._expired and kind is asyncio.CancelledError:
            assert self._working is not None
            uncancel = getattr(self._working, "uncancel", None)  # Python 3.11: this cancellation ends here
            if uncancel is not None:
                uncancel()
            raise UnavailableError(
                f"The request did not end within its {self._seconds:g} s.", status=504, code="timeout"
            ) from None
