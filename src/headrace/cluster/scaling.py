"""How many workers a load wants. Knows no clock: time is passed in."""

from __future__ import annotations

import math
from collections import deque

_UP_SECONDS = 2.0
"""More workers must have been needed for so long before one is added; a burst is over sooner."""


class Scaler:
    """Follows a load between two limits: up soon, down only when less was enough for a good while."""

    def __init__(self, least: int, most: int, load: float, down_seconds: float) -> None:
        """`load`: requests at a time that one worker should have."""
        self._least, self._most, self._load = least, most, load
        self._down_seconds = down_seconds
        self._needs: deque[tuple[float, int]] = deque()
        """When it was looked, and what would have sufficed then; back to the longest that counts."""
        self.count = least
        """Workers wanted now."""

    def look(self, now: float, requests: int) -> int:
        """The workers wanted at `now`, in seconds, when so many requests run or wait."""
        need = min(max(math.ceil(requests / self._load), self._least), self._most)
        if not self._needs:
            self._needs.append((now - _UP_SECONDS, self._least))
        self._needs.append((now, need))
        longest = max(_UP_SECONDS, self._down_seconds)
        while len(self._needs) > 1 and self._needs[1][0] <= now - longest:
            self._needs.popleft()
        steady = min(need for at, need in self._needs if at > now - _UP_SECONDS)
        highest = max(need for at, need in self._needs if at > now - self._down_seconds or at == now)
        if steady > self.count:
            self.count = steady
        elif highest < self.count:
            self.count = highest
        return self.count
