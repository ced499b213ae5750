"""Between blocks on loan and what moves their bytes: each transfer is told its news, and reports back.

An engine tells its news once, so all transfers of a worker go through one `Loans`. It runs on the engine's
thread; only `imported`, `import_ended` and `export_ended` may be called from any.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace.engine.transfers import Progress, Reservation, Transfers


class Import(Protocol):
    """Fills one request's blocks. No method may block: the engine waits."""

    def start(self, reservation: Reservation) -> None:
        """The blocks are reserved: fill them from another thread, report, and in the end `import_ended`."""
        ...

    def stop(self) -> None:
        """Write nothing more. `import_ended` is still due, unless it was never started."""
        ...


class Export(Protocol):
    """Reads one request's blocks. No method may block: the engine waits."""

    def advance(self, progress: Progress) -> None:
        """More can be read. `export_ended` is due from the first call on, whatever happens."""
        ...

    def stop(self) -> None:
        """Read nothing more. `export_ended` is still due once there was something to read."""
        ...

    def forsake(self) -> None:
        """There was nothing to read, and never will be; nothing is due."""
        ...


class Loans:
    """The transfers of one engine."""

    def __init__(self, transfers: Transfers):
        self._transfers = transfers
        self._imports: dict[str, Import] = {}
        self._exports: dict[str, Export] = {}
        self._reports: deque[Callable[[], None]] = deque()
        self._rung = threading.Event()
        self.wake: Callable[[], None] = lambda: None
        """Called from any thread when there is something to `apply`."""

    def add_import(self, request_id: str, source: Import) -> None:
        """Who fills a request's blocks; called when a request that imports was added."""
        self._imports[request_id] = source

    def add_export(self, request_id: str, sink: Export) -> None:
        """Who reads a request's blocks; called when a request that exports was added."""
        self._exports[request_id] = sink

    def imported(self, request_id: str, tokens: int) -> None:
        """So many leading tokens are in a request's blocks now."""
        self._report(lambda: self._transfers.imported(request_id, tokens))

    def import_ended(self, request_id: str) -> None:
        """An import writes nothing any more."""

        def apply() -> None:
            self._imports.pop(request_id, None)
            self._transfers.end_import(request_id)

        self._report(apply)

    def export_ended(self, request_id: str) -> None:
        """An export reads nothing any more."""

        def apply() -> None:
            self._exports.pop(request_id, None)
            self._transfers.end_export(request_id)

        self._report(apply)

    def apply(self) -> None:
        """Let the engine know what was reported; between two steps or while one computes."""
        while self._reports:
            self._reports.popleft()()

    def tell(self) -> None:
        """Tell the transfers what the engine has for them; after each `submit` and `collect` of a step."""
        news = self._transfers.news()
        for name in news.unwanted:
            self.stop(name)
        for reservation in news.reserved:
            self._imports[reservation.id].start(reservation)
        for progress in news.progress:
            self._exports[progress.id].advance(progress)
        for name in {*self._imports, *self._exports}:
            if name not in self._transfers:  # cancelled before it had any block
                if (source := self._imports.pop(name, None)) is not None:
                    source.stop()
                if (sink := self._exports.pop(name, None)) is not None:
                    sink.forsake()

    def ring(self) -> None:
        """Wake whoever waits; from any thread."""
        self._rung.set()
        self.wake()

    def wait(self) -> None:
        """Sleep until somebody reports or rings."""
        self._rung.wait()
        self._rung.clear()

    def stop(self, name: str) -> None:
        """Nothing more is wanted of a transfer, if there is one."""
        if (source := self._imports.get(name)) is not None:
            source.stop()
        if (sink := self._exports.get(name)) is not None:
            sink.stop()

    def _report(self, apply: Callable[[], None]) -> None:
        self._reports.append(apply)
        self.ring()
