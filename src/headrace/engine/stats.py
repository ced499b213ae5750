"""What the engine counts: gauges of now, and counters since it was made."""

from __future__ import annotations

from typing import NamedTuple


class EngineStats(NamedTuple):
    """Sent on to whoever asks a worker, so fields are only ever added at the end.

    Blocks are of all groups together.
    """

    waiting: int
    running: int
    blocks_total: int
    blocks_used: int
    """Held by running requests."""
    blocks_cached: int
    """Held by the prefix tree alone, free to be taken."""
    prompt_tokens: int
    """Of the requests that have started."""
    computed_tokens: int
    """Rows computed, prompt and output."""
    cached_tokens: int
    """Prompt tokens found in the prefix tree when a request first started."""
    generated_tokens: int
    preemptions: int
    steps: int
    drafted_tokens: int
    """Verified for speculation."""
    accepted_tokens: int
    """Of those, the ones that were right."""
    imported_tokens: int = 0
    """Neither computed nor found, but filled in from elsewhere."""
    tier_blocks_written: int = 0
    """Evicted blocks that a slower tier has taken; it is counted by the worker."""
    tier_bytes_written: int = 0
    tier_blocks_read: int = 0
    tier_bytes_read: int = 0
    tier_blocks_broken: int = 0
    """Found broken in the tier, and removed."""
    tier_blocks_dropped: int = 0
    """Evicted, but not written: the tier was full or too slow."""
    tier_seconds_saved: float = 0.0
    """By reading instead of computing, as far as can be told."""
    step_base: float = 0.0
    """Seconds of a step, as the worker measured; 0 while it knows too little."""
    step_row: float = 0.0
    """Seconds that each row adds."""
