"""The Ray actor around one worker. Ray restarts it, here or on another node, whenever its process ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from headrace.fleet.process import describe_status

_OF_NO_USE = (0, 1)
"""Exit statuses of a worker that another one of its kind would not better."""
_SHORTEST_LIFE = 5.0
"""Seconds between two starts, where a worker crashes at once again and again."""


class WorkerActor:
    """One worker process, for as long as the actor lives. Methods are called on threads of Ray's."""

    def __init__(self, member: bytes) -> None:
        """`member` is a `Member` as JSON; the worker starts at once."""
        self._began = time.monotonic()
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "headrace.cluster.member"],
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
        )
        assert self._worker.stdin is not None
        self._worker.stdin.write(member + b"\n")
        self._worker.stdin.flush()  # and stays open: its end would end the worker

    def place(self) -> str:
        """The node that it is on."""
        return socket.gethostname()

    def watch(self) -> str:
        """Waits until the worker has ended by its own decision, and says how.

        One that crashed takes the actor with it, which Ray then starts anew.
        """
        status = self._worker.wait()
        if status not in _OF_NO_USE:
            time.sleep(max(0.0, self._began + _SHORTEST_LIFE - time.monotonic()))
            os._exit(1)
        return describe_status(status)

    def leave(self) -> None:
        """Lets the worker finish what it computes, for its drain seconds at the most, and end."""
        self._worker.terminate()
