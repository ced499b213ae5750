"""Who is let in: a bounded queue, and a door that closes when the server drains."""

from __future__ import annotations

import asyncio
import math

from headrace.errors import RequestError
from headrace.gateway.errors import UnavailableError

DRAINING = "The server is shutting down and takes no new requests."
_SMOOTHING = 0.1
_LONGEST_RETRY_SECONDS = 60


class Admission:
    """Counts the sequences that were let in, and those of them that wait for their first token."""

    def __init__(self, max_queue: int):
        self.max_queue = max_queue
        self.draining = False
        self.waiting = 0
        self.admitted = 0
        self._wait_seconds = 1.0
        self._idle = asyncio.Event()
        self._idle.set()

    def admit(self, sequences: int) -> Seat:
        """Lets a request of so many sequences in. Raises UnavailableError: 503 draining, 429 full."""
        if self.draining:
            raise UnavailableError(DRAINING, status=503, code="draining", retry_after=5)
        if sequences > max(1, self.max_queue):
            raise RequestError(
                f"'prompt' has {sequences} prompts; at most {self.max_queue} are taken.", "prompt"
            )
        if self.waiting + sequences > self.max_queue:
            seconds = min(_LONGEST_RETRY_SECONDS, max(1, math.ceil(self._wait_seconds)))
            raise UnavailableError(
                f"The server is busy: {self.waiting} requests are waiting. Retry in {seconds} s.",
                status=429,
                code="queue_full",
                retry_after=seconds,
            )
        return Seat(self, sequences)

    def started(self, waited_seconds: float) -> None:
        """Learns from a first token how long the queue takes now, which is what a refused client is told."""
        self._wait_seconds += _SMOOTHING * (waited_seconds - self._wait_seconds)

    def enter(self, sequences: int) -> None:
        self.admitted += sequences
        self.waiting += sequences
        self._idle.clear()

    def leave(self, sequences: int, still_waiting: int) -> None:
        self.admitted -= sequences
        self.waiting -= still_waiting
        if not self.admitted:
            self._idle.set()

    async def idle(self, timeout: float) -> bool:
        """Waits until nothing is admitted; False where that took longer than `timeout` seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True


class Seat:
    """The place of one admitted request, given back when the block ends."""

    def __init__(self, admission: Admission, sequences: int):
        self._admission = admission
        self._sequences = sequences
        self._waiting = sequences

    def __enter__(self) -> Seat:
        self._admission.enter(self._sequences)
        return self

    def first_token(self, waited_seconds: float) -> None:
        """One of the request's sequences has its first token."""
        self._waiting -= 1
        self._admission.waiting -= 1
        self._admission.started(waited_seconds)

    def __exit__(self, *exception: object) -> None:
        self._admission.leave(self._sequences, self._waiting)
