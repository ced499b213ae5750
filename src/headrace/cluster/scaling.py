"""How many workers a load wants. Knows no clock: time is passed in."""

from __future__ import annotations

import math
from collections import deque

_WINDOW_SECONDS = 4.0
"""The load is the mean over so long: a short burst is over before a worker has started."""


class Scaler:
    """Follows a load between two limits: up soon, down only when less was enough for a good while."""

    def __init__(self, least: int, most: int, load: float, down_seconds: float) -> None:
        """`load`: requests at a time that one worker should have."""
        self._least, self._most, self._load = least, most, load
        self._down_seconds = down_seconds
        self._seen: deque[tuple[float, int]] = deque()
        """When it was looked, and the requests that there were; of the window."""
        self._needs: deque[tuple[float, int]] = deque()
        """When it was looked, and the workers that would have sufficed; of `down_seconds`."""
        self._began = -math.inf
        self.count = least
        """Workers wanted now."""

    def look(self, now: float, requests: int) -> int:
        """The workers wanted at `now`, in seconds, when so many requests run or wait."""
        if not self._seen:
            self._began = now
        self._seen.append((now, requests))
        while self._seen[0][0] <= now - _WINDOW_SECONDS:
            self._seen.popleft()
        if now - self._began < _WINDOW_SECONDS:
            return self.count
        mean = sum(seen for _, seen in self._seen) / len(self._seen)
        need = min(max(math.ceil(mean / self._load), self._least), self._most)
        self._needs.append((now, need))
        while self._needs[0][0] < now - self._down_seconds:
            self._needs.popleft()
        self.count = max(need, min(self.count, max(needed for _, needed in self._needs)))
        return self.count
