"""The work that the peers are given, and what an engine must be able to do to take part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

Figures = dict[str, float]
"""What one run brought, by the names that the rows of a case refer to."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one engine: which it is, and how long each of its commands may take."""

    log: str
    """Name of its log files."""
    threads: int
    seconds: float
    isa: str | None = None
    """The instruction set that Headrace is held to; None leaves it all."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the report."""

    label: str
    figure: str
    unit: str = "tok/s"
    lower_is_better: bool = False


class Engine(Protocol):
    """Headrace, or one of its peers. Whatever fails raises PeerError."""

    name: str

    def prepare(self) -> str:
        """Install it, where it is not; its version."""
        ...

    def throughput(self, model: str, batches: Sequence[int], run: Run) -> Figures:
        """'prefill B' and 'decode B' in tok/s: B prompts of about 137 tokens, then 64 tokens each."""
        ...

    def long_prompt(self, model: str, run: Run) -> Figures:
        """'prefill': tok/s over one prompt of 512 tokens; 'decode': over the tokens of one sequence."""
        ...

    def at_depth(self, model: str, depth: int, batches: Sequence[int], run: Run) -> Figures:
        """'decode B' in tok/s: B sequences with `depth` tokens in the cache each, 64 more tokens."""
        ...

    def serving(self, model: str, load: Load, run: Run) -> AbstractContextManager[str]:
        """A server that is ready; its address."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """Requests over HTTP, a fixed number of them at a time."""

    requests: int
    concurrency: int
    own_tokens: int
    """Random tokens of each prompt."""
    output_tokens: int
    shared_tokens: int = 0
    """Tokens that all prompts begin with; the prefix cache is off where there are none."""

    @property
    def context(self) -> int:
        """Tokens that a sequence may need; text that is tokenized again can come out a little longer."""
        return (self.shared_tokens + self.own_tokens + self.output_tokens) * 5 // 4


Measure = Callable[[Engine, Run], Figures]


@dataclass(frozen=True, slots=True)
class Case:
    """Something to measure on some engines, several times in turn."""

    name: str
    title: str
    engines: tuple[str, ...]
    rows: tuple[Row, ...]
    measure: Measure
    rounds: int = 3
    seconds: float = 600.0
    """How long one engine's commands may take in one round."""
    isa: str | None = None
    """What Headrace is held to, of the instruction sets that the machine has."""
    default: bool = True
    """Whether it is measured where no case is named."""
