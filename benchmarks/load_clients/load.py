"""What a load client is asked to do, what it saw, and what it must be able to do to take part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of equal length, all of them streamed and all with `ignore_eos`."""

    model: str
    requests: int
    concurrency: int
    """How many run at a time, where there is no rate."""
    rate: float | None
    """Requests a second, at the times of a Poisson process, however many run; None keeps to concurrency."""
    chat: bool
    """Whether /v1/chat/completions is asked, not /v1/completions."""
    prompt_tokens: int
    """Before the chat template adds its own."""
    output_tokens: int
    seconds: float
    """How long the client may take."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    mean: float
    p99: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the client reported."""

    lengths: Sequence[int]
    """Output tokens of each request that succeeded, as the server counted them."""
    errors: Counter[str]
    """Messages of those that failed, with their numbers."""
    output_tok_s: float
    ttft: Latency
    tpot: Latency

    def complaints(self, load: Load) -> list[str]:
        """Why the load was not served as it was asked for; nothing where it was."""
        found = [f"{number} failed: {message}" for message, number in self.errors.items()]
        if missing := load.requests - len(self.lengths) - self.errors.total():
            found.append(f"{missing} are not in the report")
        if wrong := sum(length != load.output_tokens for length in self.lengths):
            found.append(f"{wrong} brought another number of tokens than {load.output_tokens}")
        return found


class Client(Protocol):
    """A load client. Whatever fails raises PeerError."""

    name: str
    reuses_connections: bool
    """Whether it asks again on a connection that has brought an answer."""

    def prepare(self) -> str:
        """Install it, where it is not; its version."""
        ...

    def run(self, load: Load, address: str, tokenizer: Path) -> Outcome:
        """Put the load on the server at the address; `tokenizer` is a folder that transformers can read."""
        ...
