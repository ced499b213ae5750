"""Files that clients upload or batches write: kept in a folder, known by ids that cannot be guessed.

A file's name is only ever told back; its bytes lie in `ID.data`, what is known of it in `ID.json`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import msgspec
from msgspec import Struct

from headrace.errors import RequestError

MAX_FILES = 1000
MAX_TOTAL_BYTES = 8 * 2**30
_NAME_LENGTH = 255

Record = TypeVar("Record", bound=Struct)


class FileObject(Struct):
    """A file as clients see it."""

    id: str
    bytes: int
    created_at: int
    """Seconds since 1970."""
    filename: str
    purpose: Literal["batch", "batch_output"]
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class _Stored(Struct):
    """A file as it is kept."""

    file: FileObject
    owner: str


class FileStore:
    """The files of one folder. Its methods write to disk: call them on a thread."""

    def __init__(self, folder: Path):
        """Reads what is there. Raises OSError where the folder cannot be used."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files: dict[str, _Stored] = {
            stored.file.id: stored
            for stored in read_records(folder, _Stored)
            if self._data(stored.file.id).is_file()
        }
        for path in folder.iterdir():  # what an upload left that was cut short
            if path.stem not in self._files:
                path.unlink(missing_ok=True)

    def owned(self, owner: str) -> list[FileObject]:
        """The owner's files, the newest first."""
        mine = [stored.file for stored in self._files.values() if stored.owner == owner]
        return sorted(mine, key=lambda file: (-file.created_at, file.id))

    def get(self, owner: str, file_id: str, field: str | None = None) -> FileObject:
        """Raises RequestError, 404, for a file that there is not or that is another's."""
        stored = self._files.get(file_id)
        if stored is None or stored.owner != owner:
            raise RequestError(f"There is no file {file_id!r:.100}.", field, status=404, code="not_found")
        return stored.file

    def path(self, file: FileObject) -> Path:
        """Where its bytes are."""
        return self._data(file.id)

    def add(self, owner: str, filename: str, source: BinaryIO, size: int) -> FileObject:
        """Keeps an upload. Raises RequestError, 413, where there is no room for it."""
        total = sum(stored.file.bytes for stored in self._files.values())
        if len(self._files) >= MAX_FILES or total + size > MAX_TOTAL_BYTES:
            raise RequestError(
                "The server keeps no more files; delete some.", "file", status=413, code="no_room_for_files"
            )
        file_id = new_file_id()
        with self._data(file_id).open("xb") as target:
            shutil.copyfileobj(source, target, 2**20)
            target.flush()
            os.fsync(target.fileno())
        return self._keep(owner, file_id, filename, "batch")

    def adopt(self, owner: str, file_id: str, filename: str, path: Path) -> bool:
        """Takes a batch's results over, once; False where there are none."""
        if file_id in self._files:
            return True
        if not self._data(file_id).exists():
            if not path.exists() or not path.stat().st_size:
                path.unlink(missing_ok=True)
                return False
            path.replace(self._data(file_id))
        self._keep(owner, file_id, filename, "batch_output")
        return True

    def remove(self, file: FileObject) -> None:
        """Deletes it."""
        self._files.pop(file.id, None)
        (self._folder / f"{file.id}.json").unlink(missing_ok=True)
        self._data(file.id).unlink(missing_ok=True)

    def _keep(
        self, owner: str, file_id: str, filename: str, purpose: Literal["batch", "batch_output"]
    ) -> FileObject:
        size = self._data(file_id).stat().st_size
        file = FileObject(file_id, size, int(time.time()), filename[:_NAME_LENGTH], purpose)
        write_record(self._folder / f"{file_id}.json", _Stored(file, owner))
        self._files[file_id] = _Stored(file, owner)
        return file

    def _data(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.data"


def new_file_id() -> str:
    """An id that nobody can guess."""
    return "file-" + secrets.token_hex(16)


def read_records(folder: Path, kind: type[Record]) -> Iterator[Record]:
    """The records in the folder's *.json; one that cannot be read is passed over."""
    decoder = msgspec.json.Decoder(kind)
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            yield decoder.decode(path.read_bytes())


def write_record(path: Path, record: Struct) -> None:
    """Writes it whole or not at all."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
