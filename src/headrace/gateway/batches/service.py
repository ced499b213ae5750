"""The server's batches: which there are, and their requests asked when nobody who is online waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from starlette.types import ASGIApp

from headrace.gateway.admission import Admission
from headrace.gateway.batches.job import Job
from headrace.gateway.batches.lines import RequestLine
from headrace.gateway.batches.local_call import call
from headrace.gateway.batches.objects import BatchRecord, BatchRequest
from headrace.gateway.batches.store import BatchStore
from headrace.gateway.callers import Callers
from headrace.gateway.errors import UnavailableError

SLOTS = 16
"""Requests of all batches that are asked at the same time."""
PRIORITY = 2**30
"""Of every one of them: whatever a client asks for itself comes first."""
_LOOK_SECONDS = 0.02
_ATTEMPTS = 5
"""At a request that the server could not answer, 503, which may be its own fault."""
_LONGEST_PAUSE_SECONDS = 30.0


class Batches:
    """Keeps files and batches in a folder and runs the batches; lives in one event loop.

    Entered as a context manager it goes on with those that were unfinished; left, it stops where it is.
    """

    def __init__(
        self, folder: Path, endpoints: Mapping[str, ASGIApp], admission: Admission, callers: Callers
    ) -> None:
        """`endpoints` by path."""
        self._folder = folder
        self._endpoints = endpoints
        self._admission = admission
        self._callers = callers
        self._slots = asyncio.Semaphore(SLOTS)
        self._jobs: dict[str, Job] = {}
        self._store: BatchStore | None = None
        self._why = "they are not ready yet"

    async def __aenter__(self) -> Batches:
        try:
            self._store = await asyncio.to_thread(BatchStore, self._folder)
        except BlockingIOError:
            self._why = "another server uses their folder; give this one its own (--data-dir)"
        except OSError as error:
            self._why = f"their folder cannot be used ({error.strerror or error})"
        else:
            for record in self._store.unfinished():
                self._start(self._store, record)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(job.stop() for job in list(self._jobs.values())))
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def store(self) -> BatchStore:
        """What is kept. Raises UnavailableError, 503, where nothing can be."""
        if self._store is None:
            raise UnavailableError(
                f"Files and batches are not available: {self._why}.", status=503, code="batches_unavailable"
            )
        return self._store

    async def create(self, owner: str, request: BatchRequest) -> BatchRecord:
        """Begins a batch; raises as BatchStore.create does."""
        store = self.store
        record = await asyncio.to_thread(store.create, owner, request)
        self._start(store, record)
        return record

    async def cancel(self, owner: str, batch_id: str) -> BatchRecord:
        """Ends a batch early. One that has ended stays as it is."""
        record = self.store.get(owner, batch_id)
        if (job := self._jobs.get(batch_id)) is not None:
            await job.cancel()
        return record

    def _start(self, store: BatchStore, record: BatchRecord) -> None:
        job = self._jobs[record.batch.id] = Job(store, record, self._slots, self._ask)
        job.start(lambda: self._jobs.pop(record.batch.id, None))

    async def _ask(self, request: RequestLine, owner: str) -> tuple[int, bytes]:
        body = msgspec.json.encode(request.body | {"priority": PRIORITY})
        failures, pause = 0, 1.0
        while True:
            await self._gap()
            endpoint = self._endpoints[request.url]
            status, answer = await call(endpoint, request.url, body, self._scope(owner))
            failures += status == 503
            if status not in (429, 503) or failures >= _ATTEMPTS:
                return status, answer
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _scope(self, owner: str) -> dict[str, Any]:
        """What the endpoint learns of the request besides; nothing of an owner whose key is gone."""
        caller = self._callers.named(owner)
        return {"headrace.background": True} | ({} if caller is None else {"headrace.caller": caller})

    async def _gap(self) -> None:
        """Waits until nobody waits for a first token; for ever, once the server drains."""
        while self._admission.draining or self._admission.waiting:
            await asyncio.sleep(_LOOK_SECONDS)
