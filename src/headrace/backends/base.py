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

    def export_block(self, group: int, block: int) -> bytes:
        """A block's bytes, in the layout that `cache_spec` names."""
        ...

    def import_block(self, group: int, block: int, data: bytes) -> None:
        """Overwrite a block with bytes that a backend of equal fingerprint exported."""
        ...

    def close(self) -> None:
        """Release threads and memory."""
        ...
