"""What the gateway believes a worker's prefix cache holds: digests of full blocks, from its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_DIGESTS = 1 << 18
"""Of one worker; a cache of four million tokens."""


class PrefixPicture:
    """Approximate: events are on their way, and requests are about to store what nobody has reported yet."""

    def __init__(self, most: int = MOST_DIGESTS):
        """Of more than `most` digests the oldest are forgotten."""
        self._most = most
        self._held: dict[bytes, None] = {}
        self._expected: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def changed(self, stored: Iterable[bytes], evicted: Iterable[bytes]) -> None:
        """Take in a worker's events."""
        for digest in evicted:
            self._held.pop(digest, None)
        self._held.update(dict.fromkeys(stored))
        while len(self._held) > self._most:
            del self._held[next(iter(self._held))]

    def expect(self, digests: Iterable[bytes]) -> None:
        """A request that will store these blocks is on its way."""
        for digest in digests:
            self._expected[digest] = self._expected.get(digest, 0) + 1

    def settle(self, digests: Iterable[bytes]) -> None:
        """That request has stored its blocks, or has ended: what `expect` was told is no longer expected."""
        for digest in digests:
            left = self._expected[digest] - 1
            if left:
                self._expected[digest] = left
            else:
                del self._expected[digest]

    def blocks_held(self, digests: Sequence[bytes]) -> int:
        """How many of a chain's leading blocks are, or soon will be, in the cache.

        A tree that holds a block holds all above it, so the last one is found by bisection.
        """
        low, high = 0, len(digests)
        while low < high:
            middle = (low + high) // 2
            if digests[middle] in self._held or digests[middle] in self._expected:
                low = middle + 1
            else:
                high = middle
        return low
