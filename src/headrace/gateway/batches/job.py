"""One batch on its way: checked, its requests asked one after another, its results kept as they come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.gateway.batches.lines import (
    BadLineError,
    Done,
    RequestLine,
    answered,
    not_answered,
    parse_request,
    read_lines,
)
from headrace.gateway.batches.objects import BatchError, BatchErrors, BatchRecord, End, RequestCounts
from headrace.gateway.batches.store import BatchStore

log = logging.getLogger("headrace.gateway")

MAX_REQUESTS = 50_000
_ERRORS_TOLD = 100

Ask = Callable[[RequestLine, str], Awaitable[tuple[int, bytes]]]
"""Asks a request for an owner: status and body, once there is an answer that stays."""


class Job:
    """Runs one batch; can be stopped at any moment and gone on with by another process."""

    def __init__(self, store: BatchStore, record: BatchRecord, slots: asyncio.Semaphore, ask: Ask):
        """`slots` bounds how many requests of all batches are asked at the same time."""
        self._store = store
        self._record = record
        self._slots = slots
        self._ask = ask
        self._writing = asyncio.Lock()
        self._end: End = "completed"
        self._asking: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self, ended: Callable[[], object]) -> None:
        """Begins, or goes on."""
        batch = self._record.batch
        if batch.status == "cancelling":
            self._end = "cancelled"
        elif batch.status == "finalizing":
            self._end = self._record.end
        elif time.time() >= batch.expires_at:
            self._end = "expired"
        self._task = asyncio.create_task(self._run(), name=batch.id)
        expiry = asyncio.get_running_loop().call_later(
            max(0.0, batch.expires_at - time.time()), self._finish_early, "expired"
        )

        def over(task: asyncio.Task[None]) -> None:
            expiry.cancel()
            ended()

        self._task.add_done_callback(over)

    async def cancel(self) -> None:
        """Asks no more; what is answered so far is kept."""
        batch = self._record.batch
        if batch.status in ("validating", "in_progress"):
            batch.status, batch.cancelling_at = "cancelling", int(time.time())
            await self._save()
            self._finish_early("cancelled")

    async def stop(self) -> None:
        """Leaves the batch as it is, for a later start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _finish_early(self, end: End) -> None:
        if self._end == "completed" and self._task is not None and self._record.batch.status != "finalizing":
            self._end = end
            self._task.cancel()

    async def _run(self) -> None:
        try:
            if self._record.batch.status == "validating" and not await self._check():
                return
            if self._end == "completed" and self._record.batch.status == "in_progress":
                await self._ask_all()
        except asyncio.CancelledError:
            if self._end == "completed":
                raise  # the server ends, not the batch
        except (HeadraceError, BadLineError, OSError) as error:
            log.error("%s has failed: %s", self._record.batch.id, error)
            await self._fail([BatchError("batch_failed", str(error))])
            return
        finally:
            for task in self._asking:
                task.cancel()
            await asyncio.gather(*self._asking, return_exceptions=True)
        await self._finalize()

    # checking

    async def _check(self) -> bool:
        """False where requests are wrong: the batch has failed then."""
        total, errors = await asyncio.to_thread(self._read_all)
        if errors:
            await self._fail(errors)
            return False
        batch = self._record.batch
        batch.status, batch.in_progress_at = "in_progress", int(time.time())
        batch.request_counts = RequestCounts(total)
        await self._save()
        return True

    async def _fail(self, errors: list[BatchError]) -> None:
        batch = self._record.batch
        batch.errors = BatchErrors(errors)
        batch.status, batch.failed_at = "failed", int(time.time())
        await self._save()

    def _read_all(self) -> tuple[int, list[BatchError]]:
        """How many requests there are, and what is wrong with them."""
        errors: list[BatchError] = []
        ids: set[str] = set()
        total = 0
        for number, line in self._lines():
            total += 1
            try:
                request = parse_request(line, self._record.batch.endpoint)
                if request.custom_id in ids:
                    told = f"custom_id: {request.custom_id!r:.100} occurs twice"
                    raise BadLineError("duplicate_custom_id", told, "custom_id")
                ids.add(request.custom_id)
            except BadLineError as error:
                errors.append(BatchError(error.code, str(error), number, error.field))
            if total > MAX_REQUESTS:
                errors.append(BatchError("too_many_requests", f"more than {MAX_REQUESTS} requests"))
                break
            if len(errors) >= _ERRORS_TOLD:
                break
        if not total:
            errors.append(BatchError("empty_file", "the file holds no requests"))
        return total, errors

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        return read_lines(self._store.input_path(self._record))

    # asking

    async def _ask_all(self) -> None:
        done = await asyncio.to_thread(self._store.results, self._record)
        self._count(done)
        lines = self._lines()
        while (numbered := await asyncio.to_thread(next, lines, None)) is not None:
            request = parse_request(numbered[1], self._record.batch.endpoint)
            if request.custom_id in done.ids:
                continue
            await self._slots.acquire()
            task = asyncio.create_task(self._one(request))
            self._asking.add(task)
            task.add_done_callback(self._asked)
        while self._asking:
            await asyncio.wait(self._asking)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        self._asking.discard(task)

    async def _one(self, request: RequestLine) -> None:
        status, body = await self._ask(request, self._record.owner)
        failed = status >= 400
        line = answered(request, status, body)
        writing = asyncio.ensure_future(self._write(line, failed))
        with suppress(asyncio.CancelledError):
            await asyncio.shield(writing)
        await writing  # a result that is there is kept, whatever ends the batch
        counts = self._record.batch.request_counts
        counts.failed += failed
        counts.completed += not failed

    async def _write(self, line: bytes, failed: bool) -> None:
        async with self._writing:
            await asyncio.to_thread(_append, self._store.results_path(self._record, failed), line)

    def _count(self, done: Done) -> None:
        counts = self._record.batch.request_counts
        self._record.batch.request_counts = RequestCounts(counts.total, done.answered, done.failed)

    # the end

    async def _finalize(self) -> None:
        record, batch = self._record, self._record.batch
        if batch.status != "finalizing":
            if self._end != "completed" and batch.request_counts.total:
                await asyncio.to_thread(self._tell_the_rest)
            record.end = self._end
            batch.status, batch.finalizing_at = "finalizing", int(time.time())
            await self._save()
        await asyncio.to_thread(self._store.publish, record)
        batch.status = record.end
        setattr(batch, f"{record.end}_at", int(time.time()))
        await self._save()

    def _tell_the_rest(self) -> None:
        """A line in the file of errors for every request that was not answered."""
        done = self._store.results(self._record)
        message = f"The batch was {self._end} before this request was answered."
        with self._store.results_path(self._record, True).open("ab") as file:
            for _, line in self._lines():
                request = parse_request(line, self._record.batch.endpoint)
                if request.custom_id not in done.ids:
                    file.write(not_answered(request.custom_id, f"batch_{self._end}", message))

    async def _save(self) -> None:
        await asyncio.to_thread(self._store.save, self._record)


def _append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)
