"""Workers of this host taken out of service, and others put in their places, without a request that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from headrace.errors import HeadraceError, RequestError, WorkerUnavailableError
from headrace.fleet.local import LocalReplica
from headrace.fleet.replica import COMING, Replica, Role, State
from headrace.worker.host import PROC, free_memory
from headrace.worker.messages import Ready

log = logging.getLogger("headrace.fleet")


class Crew(Protocol):
    """A fleet, as far as its workers come and go."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """All of them."""
        ...

    def recruit(self, role: Role, like: Ready | None = None) -> LocalReplica:
        """A replica on this host, not started yet; `like` one whose cache it is to have."""
        ...

    def begin(self, replica: Replica) -> None:
        """Starts the replica."""
        ...

    async def end(self, replica: Replica) -> None:
        """Waits until the replica, which was told to, has ended, and forgets it."""
        ...

    async def next_news(self) -> None:
        """Until a replica's state changes."""
        ...

    def objection(self, ready: Ready) -> str:
        """Why a worker cannot serve with the others; empty where it can."""
        ...


class Progress(msgspec.Struct):
    """How far a rolling restart has come."""

    reload: bool
    total: int
    """Workers that are to be replaced."""
    done: int = 0
    running: bool = True
    error: str = ""
    """Why it ended early; empty where it did not."""


class Rolling:
    """One at a time: a worker is drained, or the fleet restarted."""

    def __init__(self, crew: Crew, free_bytes: Callable[[], int] = free_memory) -> None:
        """`free_bytes` says what memory this host has left."""
        self._crew = crew
        self._free_bytes = free_bytes
        self._busy = ""
        """What is under way."""
        self.progress: Progress | None = None
        """Of the restart that runs, or ran last."""
        self.task: asyncio.Task[None] | None = None
        """The restart that runs."""

    async def drain(self, name: str) -> None:
        """Takes a worker of this host out of service; its streams go on at others, or end where they are.

        Raises RequestError: 404, there is none of that name; 409, it is not this host's, or the last one.
        """
        replica = self._local(name)
        if not any(self._others(replica)):
            raise RequestError(
                f"'{name}' is the only worker that is ready; others must be before it is drained.",
                status=409,
                code="last_worker",
            )
        with self._alone(f"'{name}' is being drained"):
            await self._retire(replica)

    def begin_restart(self, reload: bool = False) -> Progress:
        """Starts a rolling restart, which `progress` tells of. Raises RequestError, 409, as `restart`."""
        self._check_free()
        self.progress = Progress(reload, len(self._restartable()))
        self.task = asyncio.create_task(self._restart_in_background(reload), name="rolling restart")
        return self.progress

    async def restart(self, reload: bool = False) -> None:
        """Replaces each worker of this host by a new one, in turn.

        The new one starts beside the old one where memory allows it, and before it another place is touched:
        so one that cannot be loaded takes nothing from the fleet but, where memory is short, one worker.
        `reload` says that the model's file may be another one: workers then end the streams that they have.

        Raises:
            RequestError: 409, something of the kind is under way already, or no worker is this host's.
            WorkerUnavailableError: a new worker does not start; what follows it is left as it is.
        """
        with self._alone("the workers are being restarted"):
            replicas = self._restartable()
            progress = self.progress = Progress(reload, len(replicas))
            try:
                for old in replicas:
                    await self._replace(old, reload)
                    progress.done += 1
            except HeadraceError as error:
                progress.error = str(error)
                raise
            finally:
                progress.running = False

    async def _restart_in_background(self, reload: bool) -> None:
        try:
            await self.restart(reload)
        except HeadraceError as error:
            log.error("the restart ends early: %s", error)

    async def _replace(self, old: LocalReplica, reload: bool) -> None:
        beside = self._room_beside(old, reload)
        new = self._crew.recruit(old.role, old.ready)
        if beside:
            await self._start(new)
            await self._retire(old)
        else:
            log.warning("%s ends before %s starts: memory is short", old.name, new.name)
            await self._retire(old)
            await self._start(new)

    async def _start(self, new: LocalReplica) -> None:
        crew = self._crew
        crew.begin(new)
        while new.state in COMING:
            await crew.next_news()
        objection = crew.objection(new.ready) if new.state is State.READY and new.ready is not None else ""
        if new.state is not State.READY or objection:
            new.kill()
            await crew.end(new)
            raise WorkerUnavailableError(f"{new.name} cannot serve: {objection or new.reason}")

    async def _retire(self, old: LocalReplica) -> None:
        old.drain()
        if any(self._going_on(old)):
            old.evacuate()
        await self._crew.end(old)

    def _others(self, replica: Replica) -> Iterator[Replica]:
        return (r for r in self._crew.replicas if r is not replica and r.state is State.READY)

    def _going_on(self, old: Replica) -> Iterator[Replica]:
        """Those that go on with the streams of one to the bit."""
        assert old.ready is not None or old.load == 0
        return (
            r
            for r in self._others(old)
            if old.ready is not None and r.ready is not None and r.ready.fingerprint == old.ready.fingerprint
        )

    def _room_beside(self, old: LocalReplica, reload: bool) -> bool:
        """Whether memory allows for a second worker like one. Its weights are shared unless they change."""
        if old.ready is None or old.pid is None:
            return True
        kinds = ("RssAnon", "RssFile", "RssShmem") if reload else ("RssAnon",)
        return self._free_bytes() >= old.ready.cache_bytes + _memory(old.pid, kinds)

    def _local(self, name: str) -> LocalReplica:
        replica = next((r for r in self._crew.replicas if r.name == name), None)
        if replica is None:
            known = ", ".join(f"'{r.name}'" for r in self._crew.replicas)
            raise RequestError(
                f"There is no worker {name!r:.100}; there are {known}.", status=404, code="worker_not_found"
            )
        if not isinstance(replica, LocalReplica):
            raise RequestError(
                f"'{name}' was started elsewhere: a SIGTERM there drains it.",
                status=409,
                code="worker_not_local",
            )
        return replica

    def _restartable(self) -> list[LocalReplica]:
        found = [replica for replica in self._crew.replicas if isinstance(replica, LocalReplica)]
        if not found:
            raise RequestError(
                "All workers were started elsewhere: restart them there.", status=409, code="worker_not_local"
            )
        return found

    def _check_free(self) -> None:
        if self._busy or (self.task is not None and not self.task.done()):
            busy = self._busy or "the workers are being restarted"
            raise RequestError(f"Not now: {busy}.", status=409, code="fleet_busy")

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        if self._busy:
            raise RequestError(f"Not now: {self._busy}.", status=409, code="fleet_busy")
        self._busy = what
        try:
            yield
        finally:
            self._busy = ""


def _memory(pid: int, kinds: Sequence[str], proc: Path = PROC) -> int:
    """Bytes of a process's memory of these kinds; 0 where the system does not tell."""
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(fields[kind].split()[0]) * 1024 for kind in kinds if kind in fields)
