"""A worker as a child process: started in a clean interpreter, and gone when this process is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import msgspec

from headrace.worker.settings import Launch


class WorkerProcess:
    """A running worker. It reads its `Launch` from a pipe that stays open: when the pipe ends, so does it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, launch: Launch) -> WorkerProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=2,  # standard output is the command's own, for what it was asked to print
            env=os.environ | {"PYTHONSAFEPATH": "1"},  # a module in the current folder must not shadow one
            start_new_session=True,  # Ctrl-C is for the gateway
        )
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has ended already, and `wait` tells
            process.stdin.write(msgspec.json.encode(launch) + b"\n")
            await process.stdin.drain()
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit status, negative for the number of a signal."""
        return await self._process.wait()

    def kill(self) -> None:
        """Ends it at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


def describe_status(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"
