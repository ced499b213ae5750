"""Counts the connections that a server on this machine sees, without touching them: the kernel lists them.

A closed connection stays in that list for a minute (TIME-WAIT), so looking twice a second misses none but
those that are both opened and reset in between. Linux's /proc/net/tcp: Documentation/networking/proc_net_tcp.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

_TABLE = Path("/proc/net/tcp")
_LOOK_SECONDS = 0.5


class Connections:
    """Connections to a port, told apart by the port at the client's end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._before = self._listed()
        self._seen: set[int] = set()

    def look(self) -> None:
        """Takes in what is open or was closed a short while ago."""
        self._seen |= self._listed() - self._before

    def __len__(self) -> int:
        """How many there were since this was made."""
        return len(self._seen)

    def _listed(self) -> set[int]:
        rows = (line.split()[1:3] for line in _TABLE.read_text(encoding="ascii").splitlines()[1:])
        ends = ((_port(local), _port(remote)) for local, remote in rows)
        # Either end may be the one that lingers; a listening socket's other end is port 0.
        return {
            remote if local == self._port else local
            for local, remote in ends
            if self._port in (local, remote)
        } - {0}


@contextlib.contextmanager
def counted(port: int) -> Iterator[Connections]:
    """Counts from the context's beginning to its end."""
    connections, done = Connections(port), threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            connections.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield connections
    finally:
        done.set()
        thread.join()
        connections.look()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
