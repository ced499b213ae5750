"""The tiers below an engine's cache: what is evicted goes there, and comes back when that is faster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.block_digest import chain, root_digest
from headrace.engine.engine import Engine
from headrace.engine.prefix_tree import Node
from headrace.engine.request import PrefixNamespace
from headrace.engine.stats import EngineStats
from headrace.worker.loans import Loans
from headrace.worker.tiers.block_file import HEADER_BYTES
from headrace.worker.tiers.counters import Counters, Speeds
from headrace.worker.tiers.disk import Block, DiskStore
from headrace.worker.tiers.fetcher import Fetch, Fetcher
from headrace.worker.tiers.writer import Writer

_QUEUE_BYTES = 256 * 2**20
"""Copies of evicted blocks that may wait to be written."""
_SAVED = 64
"""Blocks saved at a time, between which other workers get the folder's lock."""


class Tiers:
    """One worker's part in a folder of blocks."""

    def __init__(self, engine: Engine, folder: Path, capacity: int):
        """`capacity` is what all workers together keep in the folder, in bytes.

        Raises OSError where the folder cannot be used.
        """
        self.counters = Counters()
        backend = engine.backend
        self.speeds = Speeds()
        self._tree = engine.cache.tree
        self._backend = backend
        self._groups = range(len(backend.cache_spec.groups))
        self._block_bytes = backend.cache_spec.bytes_per_block()
        self._store = DiskStore(folder, backend.fingerprint.digest(), capacity)
        self._writer = Writer(self._store, self.counters, _QUEUE_BYTES)
        self._fetcher = Fetcher(backend, self._store, self.counters, self.speeds)
        self._fetcher.waiting = self._writer.take
        self._tree.before_eviction = self._keep

    def counted(self, stats: EngineStats) -> EngineStats:
        """The engine's statistics with the tiers' counters."""
        counters = self.counters
        return stats._replace(
            tier_blocks_written=counters.written_blocks,
            tier_bytes_written=counters.written_bytes,
            tier_blocks_read=counters.read_blocks,
            tier_bytes_read=counters.read_bytes,
            tier_blocks_broken=counters.broken_blocks,
            tier_blocks_dropped=counters.dropped_blocks,
            tier_seconds_saved=counters.saved_seconds,
        )

    def find(self, namespace: PrefixNamespace, tokens: Sequence[int], loans: Loans) -> Fetch | None:
        """A fetch of what follows the cached part of a request's tokens, if it is there and worth it.

        The request's last token is never fetched: computing it yields the next one.
        """
        cached = len(self._tree.match(namespace, tokens, len(tokens) - 1).path)
        full = (len(tokens) - 1) // BLOCK_TOKENS
        if full <= cached:
            return None
        digests: list[bytes] = []
        for digest in chain(root_digest(namespace), tokens[: full * BLOCK_TOKENS]):
            if len(digests) >= cached and not self._has(digest):
                break
            digests.append(digest)
        count = len(digests) - cached
        if not count or not self.speeds.worth_fetching(count * BLOCK_TOKENS, count * self._block_bytes):
            return None
        for digest in reversed(digests):
            self._store.use(digest)
        return Fetch(loans, digests, self._fetcher.start)

    def save(self) -> None:
        """Write what the prefix tree holds, so that it survives this process; no step may be in flight."""
        self._writer.flush()
        # What was used last comes first, and nothing before what it follows, which is met before it.
        nodes = sorted(
            (node for node in self._tree.nodes() if len(node.tokens) == BLOCK_TOKENS),
            key=lambda node: -node.tick,
        )
        nodes = nodes[: self._store.capacity // (HEADER_BYTES + self._block_bytes)]
        now = time.time_ns()
        for start in range(0, len(nodes), _SAVED):
            blocks = [Block(node.digest, self._views(node)) for node in nodes[start : start + _SAVED]]
            if not self._writer.write_now(blocks, now - start):
                self.counters.dropped_blocks += len(nodes) - start
                break

    def close(self) -> None:
        """Write what is to be written still, and end the threads."""
        self._tree.before_eviction = None
        self._fetcher.close()
        self._writer.close()

    def _has(self, digest: bytes) -> bool:
        return self._writer.take(digest) is not None or self._store.contains(digest)

    def _keep(self, node: Node) -> None:
        """A block is about to be evicted: it is copied, since the next step may write over it."""
        if not node.digest or self._store.use(node.digest) or not self._writer.has_room(self._block_bytes):
            return
        self._writer.offer(node.digest, b"".join(self._views(node)))

    def _views(self, node: Node) -> list[memoryview]:
        return [self._backend.block_view(group, node.blocks[group]) for group in self._groups]
