"""What may be sent to one remote model: our own limits towards it, and what it has told us to wait.

Time is passed in, in seconds of any clock that never goes back.
"""

from __future__ import annotations

from headrace.routing.bucket import Bucket

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
"""Seconds to wait after a refusal that does not say how long; doubled with each in a row."""

_BUSY_WAIT = 0.1
"""Seconds after which to ask again where only the requests in flight are too many."""


class RateLimit:
    """For every request: `wait`, then `take` when it is sent, then `settle` when it has ended."""

    def __init__(
        self,
        now: float,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        concurrency: int | None = None,
    ):
        self._requests = None if requests_per_minute is None else Bucket(requests_per_minute, now)
        self._tokens = None if tokens_per_minute is None else Bucket(tokens_per_minute, now)
        self._concurrency = concurrency
        self._not_before = now
        self._wait = _FIRST_WAIT
        self.in_flight = 0
        """Requests that were sent and have not ended."""

    def wait(self, now: float, tokens: int) -> float:
        """Seconds until a request of so many tokens, prompt and answer together, may be sent; 0: at once."""
        waits = [self._not_before - now]
        if self._concurrency is not None and self.in_flight >= self._concurrency:
            waits.append(_BUSY_WAIT)
        if self._requests is not None:
            waits.append(self._requests.wait(1, now))
        if self._tokens is not None:
            waits.append(self._tokens.wait(tokens, now))
        longest = max(waits)
        return longest if longest > 1e-9 else 0.0

    def take(self, now: float, tokens: int) -> None:
        """A request is sent that is expected to use so many tokens."""
        self.in_flight += 1
        for bucket, amount in ((self._requests, 1), (self._tokens, tokens)):
            if bucket is not None:
                bucket.level(now)
                bucket.spend(amount)

    def settle(self, now: float, taken: int, used: int) -> None:
        """A request that took so many tokens has ended and used so many."""
        self.in_flight -= 1
        if self._tokens is not None:
            self._tokens.level(now)
            self._tokens.spend(used - taken)

    def refused(self, now: float, retry_after: float | None) -> None:
        """The remote refused a request for its own limits, and said after how many seconds to try again."""
        wait = self._wait if retry_after is None else min(max(0.0, retry_after), 3600.0)
        self._not_before = max(self._not_before, now + wait)
        self._wait = min(_LONGEST_WAIT, 2 * self._wait)

    def accepted(self) -> None:
        """The remote took a request: the next refusal is the first in a row again."""
        self._wait = _FIRST_WAIT
