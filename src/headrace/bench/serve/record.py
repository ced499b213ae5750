"""What is known of one request once it has ended; all that the measures are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Record:
    """Times are seconds on time.perf_counter's clock."""

    asked_tokens: int
    """Output tokens that the request asked for."""
    started: float = 0.0
    """When it was due in an open loop, else when a client was free to send it."""
    sent: float = 0.0
    """When it was written to the server; later than `started` by a new connection and the client's delay."""
    chunk_times: list[float] = field(default_factory=list)
    """When each piece of the answer came that carried text."""
    ended: float = 0.0
    """When the last piece came, the one with the finish reason included, or the request failed."""
    input_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that the server found in its prefix cache; 0 where it does not tell."""
    output_tokens: int = 0
    failure: str | None = None
    """The kind of failure, None where the answer is complete."""
    message: str = ""
    """What the server or the system said of the failure."""

    def fail(self, kind: str, message: str, now: float) -> None:
        """Only the first failure counts: it is the cause of those after it."""
        if self.failure is None:
            self.failure, self.message, self.ended = kind, message, now
