"""What every backend offers: a step is submitted, then collected; the cache is opaque blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType, Protocol

from headrace.backends.cache import CacheSpec
from headrace.backends.fingerprint import Fingerprint
from headrace.backends.step import StepPlan, StepResult

Ticket = NewType("Ticket", int)


class Backend(Protocol):
    """Computes steps. One step is in flight at a time."""

    @property
    def cache_spec(self) -> CacheSpec: ...

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_rows(self) -> int:
        """The most rows a plan may have."""
        ...

    @property
    def page_cache_bytes(self) -> int:
        """Of the weights: what the system counts as memory it can free, though every step reads it."""
        ...

    def allocate_cache(self, blocks: Sequence[int]) -> None:
        """Make each group's pool of this many blocks; called once, before the first step."""
        ...

    def submit(self, plan: StepPlan) -> Ticket:
        """Begin the step. The plan's arrays must stay unchanged until it is collected.

        Only the bits of its token masks need not be known before `collect` is called.
        """
        ...

    def collect(self, ticket: Ticket) -> StepResult:
        """Wait for the step. Python's lock is released meanwhile."""
        ...

    def block_view(self, group: int, block: int) -> memoryview:
        """The block itself, not a copy: `block_bytes` bytes of its group, in `cache_spec`'s layout.

        A block of a backend of equal fingerprint may be written over it. Any thread may read or write it
        while a step computes that neither reads nor writes the block. The view stays valid, though of no
        more use, after `close`; the cache's memory is freed with the last view of it.
        """
        ...

    def close(self) -> None:
        """Release threads and memory."""
        ...
