"""The thread that writes evicted blocks to disk, behind a bounded queue: a step never waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from headrace.worker.tiers.counters import Counters
from headrace.worker.tiers.disk import Block, DiskStore

_BATCH = 16
"""Blocks written while other workers wait for the folder's lock."""

log = logging.getLogger("headrace.worker")


class Writer:
    """Copies of blocks that are to be written. `offer` and `take` may be called while it writes."""

    def __init__(self, store: DiskStore, counters: Counters, queue_bytes: int):
        """Starts the thread. Copies beyond `queue_bytes` are dropped."""
        self._store = store
        self._counters = counters
        self._queue_bytes = queue_bytes
        self._queue: dict[bytes, bytes] = {}
        self._size = 0
        self._changed = threading.Condition()
        self._closing = False
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="tier-writer", daemon=True)
        self._thread.start()

    def has_room(self, size: int) -> bool:
        """Whether a copy of so many bytes would be taken; otherwise it counts as dropped."""
        if self._size + size <= self._queue_bytes:
            return True
        self._counters.dropped_blocks += 1
        return False

    def offer(self, digest: bytes, data: bytes) -> None:
        """Queue a block's bytes, those of all groups after each other."""
        with self._changed:
            if digest not in self._queue:
                self._queue[digest] = data
                self._size += len(data)
                self._changed.notify_all()

    def take(self, digest: bytes) -> bytes | None:
        """A block's bytes, if it still waits."""
        return self._queue.get(digest)

    def write_now(self, blocks: Sequence[Block], used_ns: int) -> bool:
        """Write from the calling thread, as the store does; False where the disk would not take them all."""
        try:
            self._store.write(blocks, self._count, used_ns)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("cache blocks are not kept on disk: %s", error.strerror or error)
            return False
        return True

    def flush(self) -> None:
        """Wait until all that was offered has been written or dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                batch = [*self._queue.items()][:_BATCH]
            if not batch:
                return
            # The prefix tree evicts what follows before what it follows, which is worth more.
            blocks = [Block(digest, (memoryview(data),)) for digest, data in reversed(batch)]
            if not self.write_now(blocks, time.time_ns()):
                self._counters.dropped_blocks += len(blocks)
            with self._changed:
                for digest, data in batch:
                    del self._queue[digest]
                    self._size -= len(data)
                self._changed.notify_all()

    def _count(self, size: int) -> None:
        self._counters.written_blocks += 1
        self._counters.written_bytes += size
