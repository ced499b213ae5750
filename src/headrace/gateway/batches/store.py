"""Batches on disk: their records, and the results they have so far."""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from pathlib import Path

from headrace.errors import RequestError
from headrace.gateway.batches.files import FileStore, new_file_id, read_records, write_record
from headrace.gateway.batches.lines import Done, read_results
from headrace.gateway.batches.objects import ENDED, BatchObject, BatchRecord, BatchRequest
from headrace.gateway.errors import UnavailableError

WINDOW_SECONDS = 24 * 3600
MAX_UNFINISHED = 64
MAX_BATCHES = 1000
"""Kept; the oldest of those that have ended are forgotten."""


class BatchStore:
    """All batches of one folder. Its methods write to disk: call them on a thread."""

    def __init__(self, folder: Path):
        """Reads what is there, and holds the folder against other servers for as long as the process lives.

        Raises OSError where the folder cannot be used; BlockingIOError where another server uses it.
        """
        self._folder = folder / "batches"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise
        self._saving = threading.Lock()
        self.files = FileStore(folder / "files")
        self._records = {record.batch.id: record for record in read_records(self._folder, BatchRecord)}

    def close(self) -> None:
        """Lets go of the folder."""
        os.close(self._lock)

    def owned(self, owner: str) -> list[BatchObject]:
        """The owner's batches, the newest first."""
        mine = [record.batch for record in self._records.values() if record.owner == owner]
        return sorted(mine, key=lambda batch: (-batch.created_at, batch.id))

    def get(self, owner: str, batch_id: str) -> BatchRecord:
        """Raises RequestError, 404, for a batch that there is not or that is another's."""
        record = self._records.get(batch_id)
        if record is None or record.owner != owner:
            raise RequestError(f"There is no batch {batch_id!r:.100}.", status=404, code="not_found")
        return record

    def unfinished(self) -> list[BatchRecord]:
        """Those that have not ended, the oldest first."""
        open_ones = [record for record in self._records.values() if record.batch.status not in ENDED]
        return sorted(open_ones, key=lambda record: record.batch.created_at)

    def create(self, owner: str, request: BatchRequest) -> BatchRecord:
        """A new batch. Raises RequestError: 404, no such file; 429, too many batches are unfinished."""
        file = self.files.get(owner, request.input_file_id, "input_file_id")
        if file.purpose != "batch":
            raise RequestError("Expected a file of the purpose batch.", "input_file_id")
        if len(self.unfinished()) >= MAX_UNFINISHED:
            raise UnavailableError(
                f"{MAX_UNFINISHED} batches are unfinished; wait until one ends.",
                status=429,
                code="too_many_batches",
                retry_after=60,
            )
        now = int(time.time())
        batch = BatchObject(
            id="batch_" + secrets.token_hex(16),
            endpoint=request.endpoint,
            input_file_id=file.id,
            completion_window=request.completion_window,
            status="validating",
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            metadata=request.metadata,
        )
        record = BatchRecord(batch, owner, new_file_id(), new_file_id())
        self.save(record)
        self._records[batch.id] = record
        self._forget_the_oldest()
        return record

    def save(self, record: BatchRecord) -> None:
        """Keeps the record as it is now."""
        with self._saving:  # one thread at a time, and the last one writes the latest state
            write_record(self._folder / f"{record.batch.id}.json", record)

    def input_path(self, record: BatchRecord) -> Path:
        """Where the requests are. Raises RequestError where their file is gone."""
        return self.files.path(self.files.get(record.owner, record.batch.input_file_id))

    def uses(self, file_id: str) -> bool:
        """Whether an unfinished batch needs the file."""
        return any(record.batch.input_file_id == file_id for record in self.unfinished())

    def results_path(self, record: BatchRecord, failed: bool) -> Path:
        """Where results are appended until the batch ends."""
        return self._folder / f"{record.batch.id}.{'errors' if failed else 'output'}"

    def results(self, record: BatchRecord) -> Done:
        """Which requests have their result already. Raises BadLineError where the files are broken."""
        done = Done(set(), set())
        for failed in (False, True):
            read_results(self.results_path(record, failed), done)
        return done

    def publish(self, record: BatchRecord) -> None:
        """Makes files of the results."""
        batch = record.batch
        for failed, file_id in ((False, record.output_id), (True, record.error_id)):
            name = f"{batch.id}_{'error' if failed else 'output'}.jsonl"
            if self.files.adopt(record.owner, file_id, name, self.results_path(record, failed)):
                if failed:
                    batch.error_file_id = file_id
                else:
                    batch.output_file_id = file_id

    def _forget_the_oldest(self) -> None:
        ended = [record.batch for record in self._records.values() if record.batch.status in ENDED]
        surplus = len(self._records) - MAX_BATCHES
        for batch in sorted(ended, key=lambda batch: batch.created_at)[: max(0, surplus)]:
            del self._records[batch.id]
            (self._folder / f"{batch.id}.json").unlink(missing_ok=True)
