"""The tier on disk: one file a block, named by what the block holds, in a folder that several workers share.

    FOLDER/usage                      bytes of all blocks; its lock is held by whoever writes or removes files
    FOLDER/FINGERPRINT/ab/abcd….block

A name is the chained digest of the block's tokens and all before them, so a file is never changed: it is
written under another name, then renamed. Readers take no lock. What a process that was killed left behind is
an unfinished file, removed at the next clean-up, and a count that is too high, never too low: it is raised
before a file is there and lowered after it has gone. Nothing is synced: a file that a power failure tore has
a wrong checksum, and is removed when it is read.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from headrace.worker.tiers import block_file
from headrace.worker.tiers.block_file import HEADER_BYTES, BrokenBlockError

_USAGE = struct.Struct("<q")
_SUFFIX = ".block"
_UNFINISHED = "unfinished"
_FILLED_AGAIN = 0.9
"""What is left of the capacity after a clean-up, so that not every block needs one."""


class Block(NamedTuple):
    """A block to be written."""

    digest: bytes
    parts: Sequence[memoryview]
    """Its bytes in each cache group."""


class DiskStore:
    """The blocks of workers of one fingerprint.

    Safe in several threads and processes. Errors of the file system are raised as they are.
    """

    def __init__(self, folder: Path, fingerprint: str, capacity: int):
        """`capacity` is the folder's in bytes, other fingerprints included.

        Counts what is there, and removes the least recently used beyond that.
        """
        self._folder = folder
        self._blocks = folder / fingerprint
        self._fingerprint = fingerprint.encode()
        self.capacity = capacity
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._blocks.mkdir(mode=0o700, exist_ok=True)
        with self._lock() as usage:
            self._clean_up(usage, capacity)

    def contains(self, digest: bytes) -> bool:
        """Whether there is a file of the block, whole or not."""
        return os.path.exists(self._path(digest))  # noqa: PTH110 - on every block of a prompt

    def use(self, digest: bytes, used_ns: int | None = None) -> bool:
        """As `contains`; and the block counts as used then, in nanoseconds since 1970, or now."""
        now = time.time_ns() if used_ns is None else used_ns
        try:
            os.utime(self._path(digest), ns=(now, now))
        except OSError:
            return False
        return True

    def write(self, blocks: Sequence[Block], count: Callable[[int], None], used_ns: int) -> None:
        """Write those that are not there yet; `count` is told the bytes of each.

        The ones most worth keeping come first: the first counts as used at `used_ns`, each as used a little
        before the last. Raises OSError where one cannot be written; those before it are.
        """
        with self._lock() as usage:
            for place, block in enumerate(blocks):
                size = HEADER_BYTES + sum(map(len, block.parts))
                path = self._path(block.digest)
                if size > self.capacity or self.use(block.digest, used_ns - place):
                    continue
                used = usage.read()
                if used + size > self.capacity:
                    used = self._clean_up(usage, int(_FILLED_AGAIN * (self.capacity - size)))
                usage.write(used + size)
                try:
                    self._write_file(path, block, used_ns - place)
                except BaseException:
                    usage.write(used)
                    raise
                count(size)

    def read(self, digest: bytes, parts: Sequence[memoryview]) -> bool:
        """Read a block into `parts`; False where there is none.

        Raises BrokenBlockError where the file is broken, which is removed then; `parts` hold anything.
        """
        path = self._path(digest)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            block_file.read(file, self._fingerprint + digest, parts)
        except BrokenBlockError:
            self._remove_broken(path, file)
            raise
        finally:
            os.close(file)
        return True

    def expect(self, digest: bytes) -> None:
        """Let the system begin to read a block that will be asked for soon."""
        with suppress(OSError):
            file = os.open(self._path(digest), os.O_RDONLY | os.O_CLOEXEC)
            try:
                if sys.platform == "linux":
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)

    def _path(self, digest: bytes) -> str:
        name = digest.hex()
        return f"{self._blocks}/{name[:2]}/{name}{_SUFFIX}"

    def _write_file(self, path: str, block: Block, used_ns: int) -> None:
        folder = os.path.dirname(path)  # noqa: PTH120
        unfinished = f"{folder}/{_UNFINISHED}"  # there is but one: the lock is held
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            block_file.write(file, self._fingerprint + block.digest, block.parts)
            os.utime(file, ns=(used_ns, used_ns))
            os.rename(unfinished, path)  # noqa: PTH104
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)  # noqa: PTH108
            raise
        finally:
            os.close(file)

    def _remove_broken(self, path: str, file: int) -> None:
        with self._lock() as usage, suppress(FileNotFoundError):
            found, broken = os.stat(path), os.fstat(file)  # noqa: PTH116
            if found.st_ino == broken.st_ino:  # nobody has replaced it meanwhile
                os.unlink(path)  # noqa: PTH108
                usage.write(max(0, usage.read() - broken.st_size))

    def _clean_up(self, usage: _Usage, target: int) -> int:
        """Count the files, removing the least recently used until no more than `target` bytes are left."""
        found: list[tuple[int, int, str]] = []
        for entry in _files(self._folder):
            if entry.name.endswith(_SUFFIX):
                status = entry.stat()
                found.append((status.st_mtime_ns, status.st_size, entry.path))
            elif entry.name == _UNFINISHED:
                os.unlink(entry.path)  # noqa: PTH108
        total = sum(size for _, size, _ in found)
        found.sort(reverse=True)
        while total > target and found:
            _, size, path = found.pop()
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108
            total -= size
        usage.write(total)
        return total

    @contextmanager
    def _lock(self) -> Iterator[_Usage]:
        file = os.open(self._folder / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield _Usage(file)
        finally:
            os.close(file)


class _Usage:
    """The count of bytes in a folder; only with its lock."""

    def __init__(self, file: int):
        self._file = file

    def read(self) -> int:
        data = os.pread(self._file, _USAGE.size, 0)
        return int(_USAGE.unpack(data)[0]) if len(data) == _USAGE.size else 0

    def write(self, count: int) -> None:
        os.pwrite(self._file, _USAGE.pack(count), 0)


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """All files two folders below."""
    for fingerprint in _entries(folder):
        if fingerprint.is_dir(follow_symlinks=False):
            for shelf in _entries(fingerprint.path):
                if shelf.is_dir(follow_symlinks=False):
                    yield from _entries(shelf.path)


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries
