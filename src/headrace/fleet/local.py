"""A replica on this host: its worker is a child process, started, watched and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

from headrace.errors import WorkerDiedError
from headrace.fleet.channel import Channel
from headrace.fleet.process import WorkerProcess, describe_status
from headrace.fleet.replica import Replica, Watcher, version_refusal
from headrace.fleet.restart import RestartPolicy, Restarts
from headrace.fleet.state import Role, State
from headrace.worker.messages import Drain, Failed, Ready, ToGateway
from headrace.worker.settings import EXIT_LOAD_FAILED, Launch, WorkerSettings

log = logging.getLogger("headrace.fleet")

_TRANSFER = "unix:" if sys.platform == "linux" else ""
"""Sockets without a file are Linux's own."""
_LAST_WORD_SECONDS = 1.0
"""How long a last message may take to arrive after the process that sent it has ended."""


class LocalReplica(Replica):
    """Runs one worker after another until it is told to stop."""

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        policy: RestartPolicy,
        channel: Channel,
        watcher: Watcher,
        role: Role = "both",
    ) -> None:
        super().__init__(name, settings.model, channel, watcher, role)
        self._settings = settings
        self._policy = policy
        self._restarts = Restarts(policy)
        self._process: WorkerProcess | None = None
        self._ready_at: float | None = None
        self._refusal = ""
        self._stop = asyncio.Event()
        self._last_word = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def restarts(self) -> int:
        return self._restarts.count

    async def run(self) -> None:
        lives = 0
        while not self._stop.is_set():
            status = await self._live(f"{self.name}.{lives}")
            lives += 1
            if self._stop.is_set():
                break
            served = None if self._ready_at is None else asyncio.get_running_loop().time() - self._ready_at
            delay = self._restarts.ended(served, refused=status == EXIT_LOAD_FAILED)
            if delay is None:
                log.error("%s is given up: %s", self.name, self.reason)
                self._gone(State.FAILED)
                return
            log.warning("%s: %s; starting it again in %.1f s", self.name, self.reason, delay)
            self._gone(State.RESTARTING)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay)
        self._gone(State.STOPPED)

    def drain(self) -> None:
        self._stop.set()
        if self.state is State.READY:
            self._become(State.DRAINING)
            self._send(Drain())
        elif self.state is not State.DRAINING:
            self.kill()

    def kill(self) -> None:
        self._stop.set()
        if self._process:
            self._process.kill()

    async def _live(self, identity: str) -> int:
        """One worker from start to end; its exit status."""
        self._identity = identity
        self._ready_at = None
        self._last_word.clear()
        self._refusal = ""
        self._channel.attach(identity, self._on_message)
        try:
            launch = Launch(
                address=self._channel.address, identity=identity, settings=self._settings, transfer=_TRANSFER
            )
            self._process = await WorkerProcess.start(launch)
            if self._stop.is_set():
                self._process.kill()
            watching = asyncio.create_task(self._end_if_silent(self._process))
            try:
                status = await self._process.wait()
            finally:
                watching.cancel()
            if status in (0, EXIT_LOAD_FAILED):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._last_word.wait(), _LAST_WORD_SECONDS)
        finally:
            self._process = None
            self._channel.detach(identity)
        loading = " while loading" if self._ready_at is None else ""
        self.reason = self._refusal or f"the worker {describe_status(status)}{loading}"
        return status

    async def _end_if_silent(self, process: WorkerProcess) -> None:
        """A worker that hangs would keep its streams for ever."""
        while True:
            await asyncio.sleep(self._policy.silence / 4)
            if self.state is State.READY and not await self._questions.ping(self._policy.silence):
                self._refusal = f"the worker answered nothing for {self._policy.silence:g} s"
                process.kill()

    def _gone(self, state: State) -> None:
        """The worker has ended; what it had goes back only when the state says so."""
        self._become(state)
        self._abandon(WorkerDiedError("the worker that was asked ended; try again"))

    def _on_ready(self, ready: Ready) -> None:
        if refusal := version_refusal(ready):
            self._refusal = refusal
            if self._process:
                self._process.kill()
            return
        self.ready = ready
        self._ready_at = asyncio.get_running_loop().time()
        if not self._stop.is_set():
            self._become(State.READY)

    def _on_last_word(self, message: ToGateway) -> None:
        if isinstance(message, Failed):
            self._refusal = message.reason
        self._last_word.set()
