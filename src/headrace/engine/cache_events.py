"""What the prefix tree has stored and given up since somebody last asked: full blocks, by their digests."""

from __future__ import annotations

from typing import NamedTuple


class CacheEvents(NamedTuple):
    """No digest is in both: what came and went between two questions is in neither."""

    stored: list[bytes]
    """Parents before children."""
    evicted: list[bytes]


class CacheLog:
    """Collects the events; what cancels out is forgotten, so it never outgrows the tree for long."""

    def __init__(self) -> None:
        self._stored: dict[bytes, None] = {}
        self._evicted: dict[bytes, None] = {}

    def stored(self, digest: bytes) -> None:
        """The tree holds a full block that it did not hold before."""
        if digest in self._evicted:
            del self._evicted[digest]
        else:
            self._stored[digest] = None

    def evicted(self, digest: bytes) -> None:
        """The tree does not hold a full block any longer."""
        if digest in self._stored:
            del self._stored[digest]
        else:
            self._evicted[digest] = None

    def take(self) -> CacheEvents:
        """What happened since the last call."""
        events = CacheEvents([*self._stored], [*self._evicted])
        self._stored.clear()
        self._evicted.clear()
        return events
