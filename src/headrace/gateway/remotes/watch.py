"""Notices a stream that has stalled, whichever task waits for it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

Expired = Callable[[str, float], None]
"""Is told what did not happen, and within how many seconds."""


class Watch:
    """Looks after one wait at a time: for something to come at all, and for something that matters.

    It is cheap for each wait: where a deadline moves on, the timer is moved only once it fires.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Expired):
        self._loop = loop
        self._expired = expired
        self._limits: tuple[tuple[float, str, float], ...] = ()
        """When what is over: time, word, and the seconds it had."""
        self._idle = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._fires = math.inf

    def wait(self, words: str, seconds: float, since: float, idle: float = math.inf) -> None:
        """From now on a wait is on: it has `seconds` since then, and never `idle` seconds without `came`."""
        self._idle = idle
        self._limits = ((since + seconds, words, seconds), self._alive())
        at = min(self._limits)[0]
        if at < self._fires:
            self._arm(at)

    def came(self) -> None:
        """Something came, though the wait goes on."""
        if self._limits:
            self._limits = (self._limits[0], self._alive())

    def rest(self) -> None:
        """The wait is over."""
        self._limits = ()

    def stop(self) -> None:
        """Nothing will be waited for any more."""
        self.rest()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _alive(self) -> tuple[float, str, float]:
        return self._loop.time() + self._idle, "sent nothing more", self._idle

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires = at
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer, self._fires = None, math.inf
        if not self._limits:
            return
        at, words, seconds = min(self._limits)
        if at <= self._loop.time():
            self.rest()
            self._expired(words, seconds)
        else:
            self._arm(at)
