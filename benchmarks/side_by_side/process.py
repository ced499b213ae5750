"""Runs commands and servers under a time limit, so that nothing hangs, and ends what they started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build" / "peers"
"""Environments, checkpoints and logs of the peers."""

Command = list[str | Path]


class PeerError(Exception):
    """A peer could not be installed, failed, or took longer than its case allows."""


def output_of(
    command: Command,
    log: str,
    seconds: float,
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Standard output of a command; its standard error goes to the log. Raises PeerError."""
    with _log(log).open("w+", encoding="utf-8", errors="replace") as errors:
        process = _start(command, env, stdout=subprocess.PIPE, stderr=errors)
        try:
            output, _ = process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise PeerError(f"not done after {seconds:.0f} s") from None
        finally:
            _end(process, patience=0)
    if process.returncode != 0:
        raise PeerError(f"exit status {process.returncode}: {_last_line(_log(log))}")
    return output


@contextlib.contextmanager
def serving(
    command: Command,
    log: str,
    port: int,
    seconds: float,
    *,
    env: Mapping[str, str] | None = None,
    must_end_well: bool = False,
    ready: str = "/health",
) -> Iterator[str]:
    """Address of a server that has said at the path `ready` that it is; it is ended with the context.

    Raises PeerError where it does not get ready in time; or then ends with another status than 0, if it must.
    """
    address = f"http://127.0.0.1:{port}"
    with _log(log).open("w", encoding="utf-8") as output:
        process = _start(command, env, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(process, f"{address}{ready}", time.monotonic() + seconds, _log(log))
            yield address
        finally:
            _end(process, patience=30)
    if must_end_well and process.returncode != 0:
        raise PeerError(f"the server ended with status {process.returncode}: {_last_line(_log(log))}")


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent ends, so that their time is known to be ours."""
    set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _start(
    command: Command, env: Mapping[str, str] | None, *, stdout: object, stderr: object
) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=stdout,  # type: ignore[call-overload]
        stderr=stderr,
        text=True,
        start_new_session=True,  # so that the processes it starts can be ended with it
    )
    return process


def _end(process: subprocess.Popen[str], patience: float) -> None:
    """Ask the process to end, then end whatever is left of its group, and take it in."""
    if process.poll() is None and patience:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)


def _wait_until_ready(process: subprocess.Popen[str], url: str, deadline: float, log: Path) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PeerError(f"the server ended at its start: {_last_line(log)}")
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(url, timeout=5),
        ):
            return
        time.sleep(0.2)
    raise PeerError("the server was not ready in time")


def _log(name: str) -> Path:
    folder = BUILD / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "no message"
