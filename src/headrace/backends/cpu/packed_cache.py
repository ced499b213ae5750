"""The folder of packed weights: made once, mapped by every process that runs the model.

A file is packed under a temporary name and renamed when it is complete. Whoever packs it holds an exclusive
lock on it, and others look again until it is done; whoever uses it holds a shared one, so nobody takes it for
unused. The kernel drops a lock with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace import _native
from headrace.backends.cpu import huge_pages
from headrace.backends.cpu.packed_file import file_bytes, header_bytes, read_header, write_header
from headrace.backends.cpu.packing import (
    PackedMatrix,
    PackedWeights,
    offsets,
    pack,
    pack_privately,
    private_memory,
)
from headrace.errors import ModelFileError
from headrace.models.weights import Weights

SUFFIX = ".packed"
_UNFINISHED = ".packing"
_LARGE = 16 * 2**20
"""Weights that the processor's caches do not hold, so that each step looks their addresses up."""
_ENOUGH = 0.75
"""The least share of a file on huge pages with which it is as fast as memory of one's own."""
_LOOK_AGAIN = 0.02  # seconds
_MADV_POPULATE_READ = 22  # Linux 5.14; since Python 3.14 also in mmap

log = logging.getLogger("headrace.worker")


class PackedCache:
    """Packed weights in a folder, which is made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, weights: str) -> Path:
        """Where the packed weights of a model of this digest are, or would be."""
        name = hashlib.sha256(f"{weights} {_native.PACKED_LAYOUT}".encode()).hexdigest()[:32]
        return self._folder / (name + SUFFIX)

    def get(self, matrices: Sequence[PackedMatrix], weights: Weights, threads: int) -> PackedWeights:
        """The packed matrices; from the file if there is a good one, else packed now.

        A new file is written out in the background. Where the folder cannot be written, or is full, the
        weights are packed into private memory.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return self._open_or_pack(matrices, weights, threads)
        except OSError as error:
            log.warning("packed weights are not kept in %s: %s", self._folder, error.strerror or error)
            return pack_privately(matrices, weights, threads)

    def _open_or_pack(
        self, matrices: Sequence[PackedMatrix], weights: Weights, threads: int
    ) -> PackedWeights:
        digest = weights.digest()
        path = self.path(digest)
        unfinished = path.with_suffix(_UNFINISHED)
        waited = False
        while True:
            if (found := _open(path, digest, matrices)) is not None:
                return found
            file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if not _lock_exclusively(file):
                    if not waited:
                        log.info("another process packs the weights; waiting for it")
                        waited = True
                elif _is_at(file, unfinished):  # else another process finished it meanwhile
                    if (found := _open(path, digest, matrices)) is not None:
                        unfinished.unlink()
                        return found
                    return self._pack(file, path, matrices, weights, threads)
            finally:
                os.close(file)
            time.sleep(_LOOK_AGAIN)

    def _pack(
        self, file: int, path: Path, matrices: Sequence[PackedMatrix], weights: Weights, threads: int
    ) -> PackedWeights:
        unfinished = path.with_suffix(_UNFINISHED)
        try:
            os.ftruncate(file, 0)
            # The room is taken now: a full disk must not fail a write to the map.
            os.posix_fallocate(file, 0, file_bytes(matrices))
            pages = mmap.mmap(file, 0)
            huge_pages.advise(pages)
            pack(matrices, weights, np.frombuffer(pages, np.uint8)[header_bytes(matrices) :], threads)
            used = os.open(unfinished, os.O_RDONLY | os.O_CLOEXEC)
            packed = _map(used, matrices)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        packing = os.dup(file)  # with its lock

        def publish() -> None:
            try:
                write_header(packing, weights.digest(), matrices, packed.memory)
                unfinished.rename(path)
            except OSError as error:
                log.warning("packed weights could not be kept: %s", error.strerror or error)
                with contextlib.suppress(OSError):
                    unfinished.unlink(missing_ok=True)
            finally:
                os.close(packing)  # those who waited for it look for the file where it is now
                with contextlib.suppress(OSError):
                    fcntl.flock(used, fcntl.LOCK_SH)
                os.close(used)  # the map keeps it, and the lock
            with contextlib.suppress(OSError):  # another process tidies up too
                self._evict()

        threading.Thread(target=publish, name="keep-packed-weights").start()
        return packed

    def _evict(self) -> None:
        """Deletes what was not used for longest, until the rest takes no more than twice the largest."""
        files = sorted(self._folder.glob("*" + SUFFIX), key=lambda path: path.stat().st_mtime)
        sizes = {path: path.stat().st_size for path in files}
        total, limit = sum(sizes.values()), 2 * max(sizes.values(), default=0)
        for path in files:
            if total > limit and _delete_unused(path):
                total -= sizes[path]
        for path in self._folder.glob("*" + _UNFINISHED):  # of processes that were killed
            _delete_unused(path)


def _open(path: Path, digest: str, matrices: Sequence[PackedMatrix]) -> PackedWeights | None:
    """The file's weights; None where there is no file, or one that is damaged, which is then made anew."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            header = read_header(file)
        except ModelFileError as error:
            log.warning("%s is packed again: %s", path, error)
            return None
        if header.weights != digest or header.matrices != list(matrices):
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # what was used last is deleted last
        return _map(file, matrices)
    finally:
        os.close(file)


def _map(file: int, matrices: Sequence[PackedMatrix]) -> PackedWeights:
    """The weights in the file, mapped; the map keeps the file's lock.

    Where the file system gives the file no huge pages, the weights are copied to where there are some: small
    pages cost a fifth of decode speed (measured at batch 1, on Zen 4), huge ones of a file nothing.
    """
    pages = mmap.mmap(file, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    huge_pages.advise(pages)
    with contextlib.suppress(OSError, ValueError):
        pages.madvise(_MADV_POPULATE_READ)
    memory = np.frombuffer(pages, np.uint8)[header_bytes(matrices) :]
    if memory.size < _LARGE or not huge_pages.available() or huge_pages.share(memory) >= _ENOUGH:
        return PackedWeights(memory, offsets(matrices), shared=True)
    copy = private_memory(memory.size)
    copy[:] = memory
    return PackedWeights(copy, offsets(matrices), shared=False)


def _lock_exclusively(file: int) -> bool:
    """Whether nobody else has it locked. To wait for the lock could last as long as the other process runs:
    who packed the file goes on to use it, and takes the shared lock before a waiting process is woken.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _delete_unused(path: Path) -> bool:
    """Whether the file was deleted: nobody maps it or packs it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(file)
    return True
