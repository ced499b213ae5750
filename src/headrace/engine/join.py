"""Joining: a prefix that a running sequence is still computing is waited for, not computed a second time."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.engine.sequence import Sequence, Status


def find_leader(seq: Sequence, matched: int, running: Iterable[Sequence]) -> tuple[Sequence, int] | None:
    """The running sequence that will compute most of `seq`'s prefix beyond the `matched` tokens.

    Returns it and the number of tokens shared, at least one of which it has yet to compute. Only a sequence
    that holds blocks can lead, and such a one never waits, so no two can wait for each other.
    """
    if not seq.request.use_prefix_cache:
        return None
    leader, most = None, matched
    for other in running:
        if other.computed < other.prefill_end and _shares_cache(seq, other):
            # Its own last token a sequence computes in any case.
            limit = min(len(seq.tokens) - 1, other.prefill_end)
            shared = _common_prefix(seq.tokens, other.tokens, most, limit)
            if shared > max(most, other.computed):
                leader, most = other, shared
    return (leader, most) if leader else None


def is_ahead(leader: Sequence, shared: int) -> bool:
    """Whether a leader is still on its way to the end of the shared prefix."""
    return leader.status is Status.RUNNING and leader.started and leader.computed < shared


def _shares_cache(seq: Sequence, other: Sequence) -> bool:
    return (
        other.started and other.request.use_prefix_cache and other.request.namespace == seq.request.namespace
    )


def _common_prefix(a: list[int], b: list[int], known: int, limit: int) -> int:
    """How many of the first `limit` tokens are equal, or 0 where not even the first `known` + 1 are."""
    if known >= limit or a[: known + 1] != b[: known + 1]:
        return 0
    low, high = known + 1, limit  # the first `low` are equal
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
