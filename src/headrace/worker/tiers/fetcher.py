"""The thread that reads blocks back into the cache, while steps compute."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter

from headrace.backends.base import Backend
from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.transfers import Reservation
from headrace.worker.loans import Loans
from headrace.worker.tiers.block_file import BrokenBlockError
from headrace.worker.tiers.counters import Counters, Speeds
from headrace.worker.tiers.disk import DiskStore

_REPORTED = 16
"""Blocks after which others may share them."""
_AHEAD = 16
"""Blocks that the system reads while one is taken over."""

log = logging.getLogger("headrace.worker")


class Fetch:
    """One request's blocks to be fetched: an import of the engine's."""

    def __init__(self, loans: Loans, digests: Sequence[bytes], run: Callable[[Fetch], None]):
        """`digests` are those of the prompt's leading blocks, as far as they are in the store."""
        self.digests = digests
        self.loans = loans
        self.stopped = False
        self.reservation: Reservation
        self.tokens = 0
        """How many were fetched."""
        self._run = run

    def start(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self._run(self)

    def stop(self) -> None:
        self.stopped = True


class Fetcher:
    """Runs fetches, one after another."""

    def __init__(self, backend: Backend, store: DiskStore, counters: Counters, speeds: Speeds):
        """Starts the thread."""
        self.waiting: Callable[[bytes], bytes | None] = lambda _: None
        """The bytes of a block that is still to be written, if it is."""
        self._backend = backend
        self._store = store
        self._counters = counters
        self._speeds = speeds
        self._groups = len(backend.cache_spec.groups)
        self._queue: SimpleQueue[Fetch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tier-fetcher", daemon=True)
        self._thread.start()

    def start(self, fetch: Fetch) -> None:
        """Queue a fetch whose blocks are reserved."""
        self._queue.put(fetch)

    def close(self) -> None:
        """End the thread when it has done what was started."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (fetch := self._queue.get()) is not None:
            began = perf_counter()
            try:
                size = self._fetch(fetch)
            except Exception:  # whatever it is, the request can be computed
                log.exception("cache blocks cannot be read")
            else:
                saved = self._speeds.fetched(fetch.tokens, size, perf_counter() - began)
                self._counters.saved_seconds += saved
            finally:
                fetch.loans.import_ended(fetch.reservation.id)

    def _fetch(self, fetch: Fetch) -> int:
        """Read block after block, up to the first that cannot be had; the bytes read."""
        reservation = fetch.reservation
        digests = fetch.digests[reservation.start // BLOCK_TOKENS :]
        size = 0
        for digest in digests[:_AHEAD]:
            self._store.expect(digest)
        for index, digest in enumerate(digests):
            for later in digests[index + _AHEAD : index + _AHEAD + 1]:
                self._store.expect(later)
            parts = [
                self._backend.block_view(group, reservation.blocks[group][index])
                for group in range(self._groups)
            ]
            if fetch.stopped or not self._read(digest, parts):
                break
            size += sum(map(len, parts))
            fetch.tokens += BLOCK_TOKENS
            if fetch.tokens % (_REPORTED * BLOCK_TOKENS) == 0:
                fetch.loans.imported(reservation.id, reservation.start + fetch.tokens)
        if fetch.tokens % (_REPORTED * BLOCK_TOKENS):
            fetch.loans.imported(reservation.id, reservation.start + fetch.tokens)
        return size

    def _read(self, digest: bytes, parts: Sequence[memoryview]) -> bool:
        waiting = self.waiting(digest)
        if waiting is not None:
            start = 0
            for part in parts:
                part[:] = memoryview(waiting)[start : start + len(part)]
                start += len(part)
        else:
            try:
                if not self._store.read(digest, parts):
                    return False
            except BrokenBlockError as error:
                log.warning("a cache block on disk was broken and is computed anew: %s", error)
                self._counters.broken_blocks += 1
                return False
        self._counters.read_blocks += 1
        self._counters.read_bytes += sum(map(len, parts))
        return True
