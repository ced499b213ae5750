"""Puts a model's file in the cache folder: whole and verified, or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, NoReturn

from headrace.errors import DownloadError, ModelNotFoundError
from headrace.models.sampling_defaults import SamplingDefaults
from headrace.models.sources import Source, SourceError

Progress = Callable[[int, int], None]
"""Called with the bytes that have come and the bytes in all."""

_CHUNK_BYTES = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that can be fetched by name."""

    name: str
    file: str
    """Its name in the cache folder."""
    size: int
    """In bytes."""
    sha256: str
    sources: tuple[Source, ...]
    """In the order in which they are tried."""
    architecture: str
    """What the file says under general.architecture."""
    sampling: SamplingDefaults | None = None
    """What the model's maker recommends; None leaves it to the file."""


def fetch(entry: ModelEntry, folder: Path, *, progress: Progress | bool = True, verify: bool = False) -> Path:
    """The path of the model's file in `folder`, which is fetched where it is not there yet.

    The checksum is verified before the file takes its name, so a file of that name and the right size is
    trusted, unless `verify` asks to read it again: then a broken one is removed and fetched anew. An
    interruption (SIGINT, SIGTERM, an exception) leaves nothing behind; what a killed process left, the next
    fetch removes. Processes that want the same file fetch it once. `progress` True draws a bar on standard
    error.

    Raises DownloadError where the folder cannot be written or what comes is not the file, ModelNotFoundError
    where no source can be reached.
    """
    target = folder / entry.file
    try:
        if _is_whole(target, entry) and not (verify and _is_broken(target, entry)):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with _terminable(), _alone(folder / f".{entry.file}.lock", entry):
            # Looked at again: another process may have fetched it anew meanwhile.
            if verify and _is_whole(target, entry) and _is_broken(target, entry):
                _log.warning("%s: %s is broken; fetching it again", entry.name, target)
                target.unlink()
            if not _is_whole(target, entry):
                _fetch_from_any(entry, target, progress)
    except OSError as error:
        raise DownloadError(
            f"{entry.name} cannot be put in {folder}: {error.strerror or error}; "
            "make room or give permission there, or name another folder in HEADRACE_HOME"
        ) from error
    return target


def _is_whole(target: Path, entry: ModelEntry) -> bool:
    return target.is_file() and target.stat().st_size == entry.size


def _is_broken(target: Path, entry: ModelEntry) -> bool:
    sha = hashlib.sha256()
    with target.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            sha.update(chunk)
    return sha.hexdigest() != entry.sha256


def _fetch_from_any(entry: ModelEntry, target: Path, progress: Progress | bool) -> None:
    failures: dict[Source, SourceError | DownloadError] = {}
    for source, following in zip_longest(entry.sources, entry.sources[1:]):
        failure = _fetch_from(source, entry, target, progress)
        if failure is None:
            return
        trying = "" if following is None else f"; trying {following}"
        _log.warning("%s: %s: %s%s", entry.name, source, failure, trying)
        failures[source] = failure
    corrupt = any(isinstance(failure, DownloadError) for failure in failures.values())
    reasons = "; ".join(f"{source}: {failure}" for source, failure in failures.items())
    raise (DownloadError if corrupt else ModelNotFoundError)(
        f"{entry.name} cannot be fetched: {reasons}. Try again later, or give the path of a GGUF file"
    )


def _fetch_from(
    source: Source, entry: ModelEntry, target: Path, progress: Progress | bool
) -> SourceError | DownloadError | None:
    """Why this source did not bring the file; None where it did."""
    try:
        with _scratch(target) as scratch, _shown(entry, progress) as show:
            _write(source, entry, scratch, show).replace(target)
    except (SourceError, DownloadError) as error:
        return error
    return None


def _write(source: Source, entry: ModelEntry, scratch: Path, show: Callable[[int], None]) -> Path:
    """Writes what the source brings to a file in `scratch`; DownloadError where it is another file."""
    path = scratch / f"{entry.file}.partial"
    inbox = scratch / "inbox"
    inbox.mkdir()
    sha, done = hashlib.sha256(), 0
    with (
        path.open("xb") as file,
        closing(source.chunks(inbox, entry.sha256, lambda waiting: show(done + waiting))) as chunks,
    ):
        for chunk in chunks:
            sha.update(chunk)
            file.write(chunk)
            done += len(chunk)
            show(done)
            if done > entry.size:
                break
        file.flush()
        os.fsync(file.fileno())
    if done != entry.size or sha.hexdigest() != entry.sha256:
        size = f"{done} bytes" if done <= entry.size else "more bytes"
        raise DownloadError(
            f"what came is not the model ({size} of SHA-256 {sha.hexdigest()}, "
            f"expected {entry.size} of {entry.sha256})"
        )
    return path


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A folder beside the target, gone afterwards; those of processes that were killed go first.

    Only the holder of the lock comes here, so any such folder that is already there has no owner.
    """
    prefix = f".{target.name}.partial-"
    for left in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(path: Path, entry: ModelEntry) -> Iterator[None]:
    """Holds the lock file, which is gone afterwards; waits while another process holds it."""
    lock = _locked(path, entry)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.close()


def _locked(path: Path, entry: ModelEntry) -> IO[bytes]:
    while True:
        lock = path.open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("%s: another process is fetching it; waiting for that", entry.name)
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Whoever held it before may have removed the file: then this lock keeps nobody out.
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                return lock
        lock.close()


@contextmanager
def _terminable() -> Iterator[None]:
    """Makes SIGTERM an exception, so that it leaves nothing behind; a program's own handler stays."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def terminate(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _shown(entry: ModelEntry, progress: Progress | bool) -> Iterator[Callable[[int], None]]:
    """Yields what to tell the bytes that have come so far."""
    if callable(progress):
        tell = progress
        yield lambda done: tell(min(done, entry.size), entry.size)
    elif not progress:
        yield lambda done: None
    else:
        from tqdm import tqdm  # type: ignore[import-untyped]  # here, for most starts fetch nothing

        with tqdm(total=entry.size, desc=entry.name, unit="B", unit_scale=True, delay=1) as bar:
            # Never back: bytes count as they arrive, and may be fewer once they are unpacked.
            yield lambda done: bar.update(max(0, min(done, entry.size) - bar.n)) and None
