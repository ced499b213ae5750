"""Workers of this host taken out of service, and others put in their places, without a request that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError, RequestError, WorkerUnavailableError
from headrace.fleet.crew import Crew
from headrace.fleet.local import LocalReplica
from headrace.fleet.replica import Replica
from headrace.fleet.state import COMING, State
from headrace.worker.host import PROC, free_memory

log = logging.getLogger("headrace.fleet")


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
        """What is under way, or was last."""
        self.progress: Progress | None = None
        """Of the restart that runs, or ran last."""
        self.task: asyncio.Task[None] | None = None
        """What is under way, or was last: a restart, or a worker's draining."""

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
        await asyncio.shield(self._begin(f"'{name}' is being drained", self._retire(replica)))

    def begin_restart(self, reload: bool = False) -> Progress:
        """Replaces each worker of this host by a new one, in turn; `task` ends when that has.

        The new one starts beside the old one where memory allows it, and before it another place is touched:
        so one that cannot be loaded takes nothing from the fleet but, where memory is short, one worker.
        `reload` says that the model's file may be another one: workers then end the streams that they have.

        Raises RequestError, 409: something of the kind is under way, or no worker is this host's.
        """
        replicas = self._restartable()
        progress = Progress(reload, len(replicas))
        self._begin("the workers are being restarted", self._replace_all(replicas, progress))
        self.progress = progress
        return progress

    async def restart(self, reload: bool = False) -> None:
        """As `begin_restart`, to its end.

        Raises WorkerUnavailableError: a new worker does not start; what would follow it is left as it is.
        """
        self.begin_restart(reload)
        assert self.task is not None
        await asyncio.shield(self.task)

    def _begin(self, what: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Does the work whatever becomes of who asked for it."""
        if self.task is not None and not self.task.done():
            work.close()
            raise RequestError(f"Not now: {self._busy}.", status=409, code="fleet_busy")
        self._busy = what
        self.task = asyncio.create_task(work, name=what)
        self.task.add_done_callback(_log_failure)
        return self.task

    async def _replace_all(self, replicas: Sequence[LocalReplica], progress: Progress) -> None:
        try:
            for old in replicas:
                await self._replace(old, progress.reload)
                progress.done += 1
        except HeadraceError as error:
            progress.error = str(error)
            raise
        finally:
            progress.running = False

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


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s: that ends early: %s", task.get_name(), error)


def _memory(pid: int, kinds: Sequence[str], proc: Path = PROC) -> int:
    """Bytes of a process's memory of these kinds; 0 where the system does not tell."""
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(fields[kind].split()[0]) * 1024 for kind in kinds if kind in fields)
