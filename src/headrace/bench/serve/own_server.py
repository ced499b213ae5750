"""A `headrace serve` that lives as long as a measurement."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from headrace.address import parse_url
from headrace.bench.serve.target import get
from headrace.errors import HeadraceError

_START_SECONDS = 900
"""Until the server is ready; it may have to fetch the model first."""
_END_SECONDS = 60


@contextmanager
def own_server(arguments: Sequence[str], config: Path | None = None) -> Iterator[str]:
    """The URL of a server on a free port, given the arguments of `headrace serve` and a file of settings.

    It ends with the block, and what it says goes to standard error. Raises HeadraceError where it ends before
    it is ready.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    place = ["--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | {"PYTHONSAFEPATH": "1"}  # a module in the current folder must not shadow one
    if config is not None:
        environment["HEADRACE_CONFIG"] = str(config)
    before = signal.signal(signal.SIGTERM, _leave)  # else the server would outlive us
    server = subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", *arguments, *place],
        stdin=subprocess.DEVNULL,
        stdout=2,  # standard output is for the result
        env=environment,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(server, url)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        signal.signal(signal.SIGTERM, before)


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    address, deadline = parse_url(url), time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise HeadraceError(f"the server ended with status {server.returncode} before it was ready")
        with suppress(OSError, http.client.HTTPException):
            if get(address, "/health")[0] == 200:
                return
        time.sleep(0.05)
    raise HeadraceError(f"the server was not ready within {_START_SECONDS} s")


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
