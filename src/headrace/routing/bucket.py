"""A token bucket that holds a minute's worth. Time is passed in, in seconds of any steady clock."""

from __future__ import annotations

_MINUTE = 60.0


class Bucket:
    """Fills evenly, up to `per_minute`; what is spent beyond its level is a debt that must fill up first."""

    def __init__(self, per_minute: int, now: float):
        self.size = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """What can be spent now; negative for a debt."""
        if now > self._at:
            self._level = min(float(self.size), self._level + (now - self._at) * self.size / _MINUTE)
            self._at = now
        return self._level

    def spend(self, amount: float) -> None:
        """Takes so much out, whether it is there or not; a negative amount gives back."""
        self._level = min(float(self.size), self._level - amount)

    def wait(self, amount: float, now: float) -> float:
        """Seconds until so much is there: 0 where it is. A full bucket is enough for any amount."""
        missing = min(amount, self.size) - self.level(now)
        return max(0.0, missing * _MINUTE / self.size)

    def resize(self, per_minute: int, now: float) -> None:
        """Changes the rate and keeps what was spent."""
        self._level = self.level(now) + per_minute - self.size
        self.size = per_minute
