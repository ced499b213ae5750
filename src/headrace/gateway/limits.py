"""How much one caller may use: requests and tokens a minute, and requests at the same time.

Rates are token buckets that hold a minute's worth. Time is passed in, in seconds of any steady clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.gateway.keys import KeyLimits
from headrace.routing.bucket import Bucket


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which limit a request meets, and when to try again."""

    limit: str
    """As the keys file names it."""
    allowed: int
    retry_seconds: float


class Limits:
    """One caller's limits and what it has used of them."""

    def __init__(self, limits: KeyLimits, now: float):
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self._concurrency: int | None = None
        self.active = 0
        """Requests that wait or run."""
        self._usual_seconds = 1.0
        self.set(limits, now)

    def set(self, limits: KeyLimits, now: float) -> None:
        """Takes new limits; what was used stays used."""
        self._requests = _bucket(self._requests, limits.requests_per_minute, now)
        self._tokens = _bucket(self._tokens, limits.tokens_per_minute, now)
        self._concurrency = limits.concurrency

    def refusal(self, now: float, prompt_tokens: int = 0) -> Refusal | None:
        """Why a request with such a prompt is not let in now; None where it is."""
        if self._concurrency is not None and self.active >= self._concurrency:
            return Refusal("concurrency", self._concurrency, self._usual_seconds / self._concurrency)
        waits = [
            Refusal(name, bucket.size, wait)
            for name, bucket, amount in (
                ("requests_per_minute", self._requests, 1),
                ("tokens_per_minute", self._tokens, max(1, prompt_tokens)),
            )
            if bucket is not None and (wait := bucket.wait(amount, now)) > 1e-9
        ]
        return max(waits, key=lambda refusal: refusal.retry_seconds, default=None)

    def enter(self, prompt_tokens: int, now: float) -> None:
        """A request is let in."""
        self.active += 1
        if self._requests is not None:
            self._requests.level(now)
            self._requests.spend(1)
        if self._tokens is not None:
            self._tokens.level(now)
            self._tokens.spend(prompt_tokens)

    def generated(self, tokens: int) -> None:
        """So many tokens of an answer were computed."""
        if self._tokens is not None:
            self._tokens.spend(tokens)

    def leave(self, seconds: float) -> None:
        """A request that was let in has ended after so long."""
        self.active -= 1
        self._usual_seconds += 0.2 * (seconds - self._usual_seconds)

    def take_back(self, prompt_tokens: int) -> None:
        """A request that was let in is turned away after all, and has used nothing."""
        self.active -= 1
        if self._requests is not None:
            self._requests.spend(-1)
        if self._tokens is not None:
            self._tokens.spend(-prompt_tokens)

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """OpenAI's x-ratelimit-… headers; none for what is not limited."""
        found: list[tuple[bytes, bytes]] = []
        for kind, bucket in ((b"requests", self._requests), (b"tokens", self._tokens)):
            if bucket is not None:
                left = max(0, math.floor(bucket.level(now) + 1e-9))
                found += [
                    (b"x-ratelimit-limit-" + kind, b"%d" % bucket.size),
                    (b"x-ratelimit-remaining-" + kind, b"%d" % left),
                    (b"x-ratelimit-reset-" + kind, duration(bucket.wait(bucket.size, now)).encode()),
                ]
        return found


def _bucket(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    bucket.resize(per_minute, now)
    return bucket


def duration(seconds: float) -> str:
    """As OpenAI writes it in its headers: 20ms, 6s, 1m30s. Rounded up."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
