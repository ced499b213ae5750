"""What the tiers count, and the speeds by which they decide."""

from __future__ import annotations

from dataclasses import dataclass

_SMOOTHING = 0.3
"""The weight of a new measurement."""
_LEAST_ROWS = 32
"""A step of fewer rows says little about prefill: reading the weights takes most of it."""
_LEAST_BYTES = 2**18
_FIRST_READ = 5e8
"""Bytes a second that are hoped for before anything was read: those of a plain solid-state disk."""
_START_SECONDS = 0.001
"""What a fetch takes beside reading: two threads are woken."""
_HOPE = 1.05
"""By how much a store that was too slow is thought better of each time it is not asked, to be tried again."""


@dataclass(slots=True)
class Counters:
    """Since the worker started; each is raised by one thread only."""

    written_blocks: int = 0
    written_bytes: int = 0
    read_blocks: int = 0
    read_bytes: int = 0
    broken_blocks: int = 0
    """Files that were not what had been written; they are removed."""
    dropped_blocks: int = 0
    """Not written: the disk was full or too slow."""
    saved_seconds: float = 0.0
    """What computing the tokens that were read would have taken, less what reading took."""


class Speeds:
    """How fast this worker prefills and its store reads, both as measured."""

    def __init__(self) -> None:
        self._prefill: float | None = None
        self._read = _FIRST_READ
        self._has_read = False

    def computed(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if rows >= _LEAST_ROWS and seconds > 0:
            speed = rows / seconds
            self._prefill = speed if self._prefill is None else _mix(self._prefill, speed)

    def fetched(self, tokens: int, size: int, seconds: float) -> float:
        """So many tokens, `size` bytes, were read in so long. Returns the seconds that this saved."""
        if size >= _LEAST_BYTES and seconds > 0:
            speed = size / seconds
            self._read = _mix(self._read, speed) if self._has_read else speed
            self._has_read = True
        return 0.0 if self._prefill is None else tokens / self._prefill - seconds

    def worth_fetching(self, tokens: int, size: int) -> bool:
        """Whether so many tokens are there sooner when they are read; as long as nothing is known, yes."""
        if self._prefill is None or size / self._read + _START_SECONDS < tokens / self._prefill:
            return True
        self._read *= _HOPE
        return False


def _mix(before: float, new: float) -> float:
    return (1 - _SMOOTHING) * before + _SMOOTHING * new
