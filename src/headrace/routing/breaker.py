"""A circuit breaker: where a model fails again and again, nothing is sent to it for a while.

Then one request at a time is a trial: if it succeeds the circuit closes, if it fails it opens for twice as
long (Nygard, Release It!, 2007). Time is passed in, in seconds of any clock that never goes back.
"""

from __future__ import annotations

from collections import deque


class Breaker:
    """Of one model. For every request that is sent: `allows`, `begin_trial`, and then how it ended."""

    def __init__(
        self,
        *,
        threshold: int = 5,
        rate: float = 0.5,
        window: int = 20,
        window_seconds: float = 60.0,
        first_open: float = 1.0,
        longest_open: float = 60.0,
    ):
        """Opens after `threshold` failures in a row, or where a share of `rate` of the last `window` failed.

        Of those, none is older than `window_seconds`. It is open for `first_open` seconds, and twice as long
        each time that it opens again within `window_seconds`, up to `longest_open`.
        """
        self._threshold, self._rate, self._window_seconds = threshold, rate, window_seconds
        self._first_open, self._longest_open = first_open, longest_open
        self._results: deque[tuple[float, bool]] = deque(maxlen=window)
        self._in_a_row = 0
        self._open_seconds = 0.0
        self._until: float | None = None
        """When it may be tried again; None: it is closed."""
        self._closed_at = float("-inf")
        self._trial_until = float("-inf")

    @property
    def open(self) -> bool:
        """Whether it waits for a trial to succeed."""
        return self._until is not None

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now."""
        return self._until is None or (now >= self._until and now >= self._trial_until)

    def open_for(self, now: float) -> float:
        """Seconds until a request may be sent, at the latest; a trial that succeeds ends them sooner."""
        return 0.0 if self._until is None else max(0.0, self._until - now, self._trial_until - now)

    def begin_trial(self, now: float) -> None:
        """A request is sent, as a trial where the circuit is open. One not heard of is given up."""
        if self._until is not None:
            self._trial_until = now + self._longest_open

    def abandoned(self) -> None:
        """A request ended in a way that says nothing of the model, such as a client that went away."""
        self._trial_until = float("-inf")

    def succeeded(self, now: float) -> None:
        """A request is being answered: its first token came."""
        if self._until is not None:
            if self._trial_until == float("-inf"):
                return  # sent before it opened
            self._until, self._closed_at = None, now
            self._results.clear()
        self._trial_until = float("-inf")
        self._in_a_row = 0
        self._results.append((now, True))

    def failed(self, now: float) -> None:
        """A request failed by the model's fault: no connection, a timeout, a server's error, garbage."""
        if self._until is not None:
            if self._trial_until != float("-inf"):
                self._open(now)
            return
        self._in_a_row += 1
        self._results.append((now, False))
        recent = [good for time, good in self._results if now - time <= self._window_seconds]
        many = len(recent) == self._results.maxlen and recent.count(False) >= self._rate * len(recent)
        if self._in_a_row >= self._threshold or many:
            self._open(now)

    def _open(self, now: float) -> None:
        again = self._until is not None or now - self._closed_at <= self._window_seconds
        self._open_seconds = min(self._longest_open, 2 * self._open_seconds) if again else self._first_open
        self._until = now + self._open_seconds
        self._trial_until = float("-inf")
        self._in_a_row = 0
        self._results.clear()
