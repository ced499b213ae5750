"""What goes wrong with a policy of the user's: told in full once, and from then on as a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("headrace.gateway")

_SECONDS = 60.0
"""Between two lines about one policy."""


class Mishaps:
    """Of one policy. A policy that is broken mostly is so for each request, and the log has room for more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._told: float | None = None
        self._count = 0
        """Since then."""

    def happened(self, policy: str, what: str, about: object, error: BaseException | None = None) -> None:
        """Logs it, or counts it until the minute is over; `error` is shown with its traceback."""
        now = self._clock()
        if self._told is None:
            log.error("the policy %s %s %.300r", policy, what, about, exc_info=error)
        elif now - self._told < _SECONDS:
            self._count += 1
            return
        else:
            log.error(
                "the policy %s went wrong %d times more in %.0f s; just now it %s %.300r",
                policy, self._count + 1, now - self._told, what, about,
            )  # fmt: skip
        self._told, self._count = now, 0
