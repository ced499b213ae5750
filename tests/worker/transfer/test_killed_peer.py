"""A worker killed in the middle of a transfer: the other one is told at once, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest

from headrace.worker.transfer.connection import Connection
from headrace.worker.transfer.errors import PeerGoneError
from headrace.worker.transfer.listener import Listener

SENDER = Path(__file__).with_name("endless_sender.py")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def shared_memory() -> set[str]:
    """Names in the file system of shared memory, and of mappings of rings in this process."""
    maps = Path("/proc/self/maps").read_text()
    rings = {line.split()[0] for line in maps.splitlines() if "headrace-ring" in line}
    return rings | {file.name for file in Path("/dev/shm").iterdir()}


def settled() -> tuple[int, set[str]]:
    """Both, once threads of earlier tests have closed what they still had."""
    found, since = (open_files(), shared_memory()), time.monotonic()
    while time.monotonic() - since < 0.3:
        time.sleep(0.02)
        if (now := (open_files(), shared_memory())) != found:
            found, since = now, time.monotonic()
    return found


@pytest.mark.parametrize("address", ["unix:", "tcp:127.0.0.1:0"])
def test_nothing_is_left_of_a_killed_sender(address):
    files, shared = settled()
    frames, told = 0, Event()

    def receive(connection: Connection) -> None:
        nonlocal frames
        target = [memoryview(bytearray(1 << 20))] * 64
        try:
            while True:
                connection.receive(timeout=10)
                connection.receive_blocks(target)
                frames += 1
        except PeerGoneError:
            told.set()

    listener = Listener(address, receive, secret=b"of both ends")
    with subprocess.Popen([sys.executable, SENDER, listener.address]) as sender:
        try:
            deadline = time.monotonic() + 20
            while frames < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            os.kill(sender.pid, signal.SIGKILL)
    assert told.wait(2) and frames >= 2
    listener.close()
    deadline = time.monotonic() + 5
    while (open_files(), shared_memory()) != (files, shared) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (open_files(), shared_memory()) == (files, shared)
