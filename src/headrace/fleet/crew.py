"""The replicas of a fleet: which there are, what each is for, how they come and go."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headrace.engine.stats import EngineStats
from headrace.errors import RequestError, WorkerUnavailableError
from headrace.fleet.channel import Channel
from headrace.fleet.joined import JoinedReplica
from headrace.fleet.local import LocalReplica
from headrace.fleet.replica import Replica, Watcher
from headrace.fleet.restart import RestartPolicy
from headrace.fleet.state import COMING, Role, State
from headrace.worker.messages import Ready
from headrace.worker.settings import WorkerSettings

log = logging.getLogger("headrace.fleet")

_SERVING = COMING | {State.READY}
_OTHER: dict[Role, Role] = {"prefill": "decode", "decode": "prefill"}
"""What others must be for where a worker is for one thing alone."""


class Crew:
    """Recruits and begins replicas on this host, adds those of others, and forgets those that have ended."""

    def __init__(self, settings: WorkerSettings, policy: RestartPolicy) -> None:
        """How workers on this host are set, and started again."""
        self._settings = settings
        self._policy = policy
        self._channel: Channel | None = None
        self._watcher: Watcher | None = None
        self._replicas: list[Replica] = []
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._numbers = itertools.count()
        """Of replicas on this host."""
        self._news = asyncio.Event()
        """Set, and replaced, whenever a replica's state changes."""
        self.facts: Ready | None = None
        """What the workers say of the model; None before one was ready."""
        self.stopping = False

    def open(self, channel: Channel, watcher: Watcher) -> None:
        """Workers on this host use the channel, and the watcher hears from all replicas that come."""
        self._channel, self._watcher = channel, watcher

    def stop(self) -> None:
        """None is given requests any more."""
        self.stopping = True

    # who there is

    @property
    def replicas(self) -> Sequence[Replica]:
        """All of them, whatever their state."""
        return self._replicas

    def ready(self) -> Iterator[Replica]:
        """Those that take requests now."""
        return (replica for replica in self._replicas if replica.state is State.READY and not self.stopping)

    @property
    def hopeful(self) -> bool:
        """Whether a replica may be ready soon."""
        return not self.stopping and any(replica.state in COMING for replica in self._replicas)

    def unavailable(self) -> WorkerUnavailableError:
        """The error where no replica is ready, nor will be."""
        states = ", ".join(sorted({replica.state.value for replica in self._replicas})) or "not started"
        return WorkerUnavailableError(f"no worker takes requests now ({states}); try again soon")

    async def stats(self, timeout: float = 1.0) -> dict[str, EngineStats]:
        """Figures by replica; without those that have no worker. `timeout` in seconds."""
        asked = list(self._replicas)  # others may come and go meanwhile
        answers = await asyncio.gather(*(replica.stats(timeout) for replica in asked))
        return {replica.name: stats for replica, stats in zip(asked, answers, strict=True) if stats}

    def changed(self) -> None:
        """A replica's state has changed."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def next_news(self) -> None:
        """Until a replica's state changes."""
        await self._news.wait()

    async def until_ready(self, replicas: Iterable[Replica]) -> None:
        """Until all of these are ready, and one at least of all that there are.

        Raises WorkerUnavailableError, with the worker's own message, where one of these cannot be loaded.
        """
        for replica in replicas:
            task = self._tasks[replica]
            while replica.state in COMING and not task.done():
                await self.next_news()
            if replica.state is not State.READY:
                await task
                raise WorkerUnavailableError(replica.reason)
        while not self._learn_facts():
            await self.next_news()

    # coming and going

    def recruit(self, role: Role, like: Ready | None = None) -> LocalReplica:
        """A replica on this host, to be started by `begin`; its cache as large as that of `like`."""
        assert self._channel is not None and self._watcher is not None
        settings = self._settings
        if like is not None and settings.cache_tokens is None:
            # What others have taken by now is no reason for a smaller one.
            settings = msgspec.structs.replace(settings, cache_bytes=like.cache_bytes)
        name = f"worker-{next(self._numbers)}"
        replica = LocalReplica(name, settings, self._policy, self._channel, self._watcher, role)
        self._replicas.append(replica)
        return replica

    def begin(self, replica: Replica) -> None:
        """Runs the replica."""
        self._tasks[replica] = asyncio.create_task(replica.run(), name=replica.name)

    async def end(self, replica: Replica) -> None:
        """Waits until the replica, which was told to, has ended, and forgets it."""
        task = self._tasks[replica]
        await asyncio.wait([task])
        task.result()
        self._remove(replica)
        self._learn_facts()  # which may be of other weights

    def add(self, replica: JoinedReplica) -> None:
        """A worker has joined, or will soon be ready again; it is the fleet's for as long as it runs."""
        assert self._watcher is not None
        replica.enter(self._watcher)
        self.begin(replica)
        self._tasks[replica].add_done_callback(lambda _: self._remove(replica))
        self._replicas.append(replica)

    def objection(self, ready: Ready) -> str:
        """Why a worker cannot serve with the others; empty where it can, though it may be told in the log."""
        if self.facts is None:
            return ""
        if ready.context_length < self.facts.context_length:
            return (
                f"it has room for a context of {ready.context_length} tokens, the others for "
                f"{self.facts.context_length}: give it a larger cache (--cache-tokens, --context-length)"
            )
        if ready.fingerprint != self.facts.fingerprint:
            log.warning("a worker of %s computes otherwise than the first one: %s", ready.model, ready)
        return ""

    async def drain(self, timeout: float) -> bool:
        """Lets the workers finish what they have accepted; whether all have within so many seconds."""
        for replica in self._replicas:
            replica.drain()
        if not self._tasks:
            return True
        _, late = await asyncio.wait(self._tasks.values(), timeout=timeout)
        return not late

    async def kill(self) -> None:
        """Ends the workers at once, and waits until they have."""
        for replica in self._replicas:
            replica.kill()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def _remove(self, replica: Replica) -> None:
        del self._tasks[replica]
        self._replicas.remove(replica)

    def _learn_facts(self) -> bool:
        """From the first one that is ready; False where none is."""
        first = next(self.ready(), None)
        if first is None or first.ready is None:
            return False
        self.facts = first.ready
        return True

    # roles

    def set_role(self, name: str, role: Role) -> None:
        """What a worker is for from now on.

        Raises RequestError: 404, there is none of that name; 409, nobody would be left for something.
        """
        replica = next((replica for replica in self._replicas if replica.name == name), None)
        if replica is None:
            known = ", ".join(f"'{replica.name}'" for replica in self._replicas)
            raise RequestError(
                f"There is no worker {name!r:.100}; there are {known}.", status=404, code="worker_not_found"
            )
        left: list[Role] = [r.role for r in self._replicas if r is not replica and r.state in _SERVING]
        if role != "both" and not any(other in ("both", _OTHER[role]) for other in left):
            raise RequestError(
                f"No other worker is for {_OTHER[role]}: '{name}' cannot be for {role} alone.",
                "role",
                status=409,
                code="role_needed",
            )
        log.info("%s, which was for %s, is for %s now", name, replica.role, role)
        replica.role = role
