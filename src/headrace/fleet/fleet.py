"""The replicas behind one front door: requests go in, events come out, whatever happens to a worker."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from headrace.engine.stats import EngineStats
from headrace.errors import WorkerDiedError, WorkerUnavailableError
from headrace.fleet.channel import Channel
from headrace.fleet.dispatch import Dispatcher
from headrace.fleet.joined import JoinedReplica
from headrace.fleet.local import LocalReplica
from headrace.fleet.prefixes import Prefixes
from headrace.fleet.registry import Registry
from headrace.fleet.replica import COMING, Replica, Role, State
from headrace.fleet.restart import RestartPolicy
from headrace.fleet.shape import FleetShape
from headrace.fleet.stream import Stream
from headrace.worker.messages import CacheChanged, Embed, Embedded, Ready, Submit
from headrace.worker.settings import WorkerSettings

log = logging.getLogger("headrace.fleet")

_MOST_LOSSES = 4
"""Workers that may end in turn before they brought a request any further: it may be what ended them."""
_EMBED_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """A replica as /health shows it."""

    name: str
    model: str
    role: Role
    state: State
    pid: int | None
    fingerprint: str | None
    """Digest of the numerics fingerprint, None before the first worker was loaded."""
    restarts: int
    reason: str
    """Why the last worker ended; empty where none has."""


class Fleet:
    """Starts workers, watches them, and hands requests to them. Lives in one event loop.

    A request that a worker leaves behind goes on at another, from the tokens it has: its stream shows
    nothing of that. It waits where there is none now but one may come. An asynchronous context manager:
    entering starts the workers, leaving ends them.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        shape: FleetShape | None = None,
        policy: RestartPolicy | None = None,
        *,
        registry: Registry | None = None,
        model: str = "",
    ) -> None:
        """Replicas that are alike but for their roles; one where no shape is given.

        The registry's workers of the model of this name join them.
        """
        self._settings = settings
        self._registry = registry
        self._model = model
        self._facts: Ready | None = None
        self._shape = shape or FleetShape()
        self._policy = policy or RestartPolicy()
        self.prefixes = Prefixes()
        """What the replicas' prefix caches hold."""
        self._replicas: list[Replica] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._channel: Channel | None = None
        self._embeddings = itertools.count()
        self._dispatcher = Dispatcher(settings.max_batch_tokens)
        self._waiting: dict[str, Stream] = {}
        """Requests for which no replica was ready, in order of arrival."""
        self._news = asyncio.Event()
        """Set, and replaced, whenever a replica's state changes."""
        self._stopping = False

    async def start(self) -> None:
        """Returns when every replica is ready; where all are to join from elsewhere, when the first one is.

        Raises:
            WorkerUnavailableError: with the worker's own message, where one cannot be loaded.
        """
        self._channel = Channel()
        for number, role in enumerate(self._shape.roles()):
            name = f"worker-{number}"
            replica = LocalReplica(name, self._settings, self._policy, self._channel, self, role)
            self.prefixes.watch(replica)
            self._replicas.append(replica)
            self._tasks.append(asyncio.create_task(replica.run(), name=replica.name))
        local = list(zip(self._replicas, self._tasks, strict=True))
        if self._registry is not None:
            self._registry.attach(self._model, self)
        try:
            for started, task in local:
                while started.state in COMING and not task.done():
                    await self._next_news()
                if started.state is not State.READY:
                    await task
                    raise WorkerUnavailableError(started.reason)
            while (first := next(iter(self._ready()), None)) is None:
                await self._next_news()
            self._facts = first.ready
        except BaseException:
            await self.close()
            raise

    @property
    def facts(self) -> Ready:
        """What the workers say of the model: context length, fingerprint, cache; after `start`."""
        assert self._facts is not None
        return self._facts

    @property
    def cache_bytes(self) -> int:
        """Of the caches on this host together."""
        local = (replica for replica in self._replicas if isinstance(replica, LocalReplica))
        return sum(replica.ready.cache_bytes for replica in local if replica.ready)

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return len(self._waiting) + sum(replica.load for replica in self._replicas)

    def submit(self, message: Submit) -> Stream:
        """Hands the request to a replica, or keeps it until one is ready; its id must be new.

        Raises:
            WorkerUnavailableError: no replica is ready, nor will be.
        """
        stream = Stream(message, self.cancel, model=self._facts.model if self._facts else "")
        if not self._place(stream):
            raise self._unavailable()
        return stream

    async def embed(self, prompt: list[int]) -> list[float]:
        """The vector of a prompt, of length 1.

        Raises:
            RequestError: the prompt is too long, or the model gives no vectors.
            WorkerUnavailableError, WorkerDiedError: no replica is ready or will be, or one after another
                ended before it answered.
        """
        for attempt in itertools.count(1):
            question = Embed(f"embedding-{next(self._embeddings)}", prompt)
            replica = await self._wait_for_one()
            try:
                answer = await replica.ask(question)
            except WorkerDiedError:
                if attempt == _EMBED_ATTEMPTS:
                    raise
                continue
            assert isinstance(answer, Embedded)
            return answer.vector
        raise AssertionError

    def cancel(self, request_id: str) -> None:
        """Ends the request's stream and frees what it holds; nothing happens where it has ended."""
        if stream := self._waiting.pop(request_id, None):
            stream.end()
            return
        any(replica.cancel(request_id) for replica in self._replicas)

    async def stats(self, timeout: float = 1.0) -> dict[str, EngineStats]:
        """Gauges and counters by replica; without those that have no worker. `timeout` in seconds.

        Counters begin at zero again when a worker is restarted.
        """
        answers = await asyncio.gather(*(replica.stats(timeout) for replica in self._replicas))
        return {r.name: stats for r, stats in zip(self._replicas, answers, strict=True) if stats}

    def health(self) -> list[ReplicaHealth]:
        """Every replica's state."""
        return [
            ReplicaHealth(
                name=replica.name,
                model=replica.model,
                role=replica.role,
                state=replica.state,
                pid=replica.pid,
                fingerprint=replica.ready.fingerprint.digest() if replica.ready else None,
                restarts=replica.restarts,
                reason=replica.reason,
            )
            for replica in self._replicas
        ]

    async def drain(self, timeout: float) -> bool:
        """Lets workers finish what they have accepted; no new request is taken.

        Workers that need more than `timeout` seconds are ended. True where none had to be.
        """
        self._stop()
        for replica in self._replicas:
            replica.drain()
        late: set[asyncio.Task[None]] = set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout)
        await self.close()
        return not late

    async def close(self) -> None:
        """Ends the workers at once; their requests get WorkerDiedError."""
        self._stop()
        for replica in self._replicas:
            replica.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._channel:
            self._channel.close()

    async def __aenter__(self) -> Fleet:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _stop(self) -> None:
        self._stopping = True
        self._give_up_waiting()
        if self._registry is not None:
            self._registry.detach(self._model, self)

    # workers from elsewhere

    def add(self, replica: JoinedReplica) -> None:
        """A worker has joined, or will soon be ready again; it is the fleet's for as long as it runs."""
        task = asyncio.create_task(replica.run(), name=replica.name)
        task.add_done_callback(lambda task: self._remove(replica, task))
        self._tasks.append(task)
        self._replicas.append(replica)
        self.prefixes.watch(replica)

    def _remove(self, replica: JoinedReplica, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        self._replicas.remove(replica)
        self.prefixes.unwatch(replica)

    def objection(self, ready: Ready) -> str:
        """Why a worker cannot serve with the others; empty where it can, though it may be told in the log."""
        if self._facts is None:
            return ""
        if ready.context_length < self._facts.context_length:
            return (
                f"it has room for a context of {ready.context_length} tokens, the others for "
                f"{self._facts.context_length}: give it a larger cache (--cache-tokens, --context-length)"
            )
        if ready.fingerprint != self._facts.fingerprint:
            log.warning("a worker of %s computes otherwise than the first one: %s", ready.model, ready)
        return ""

    # what replicas tell

    def changed(self, replica: Replica) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
        if replica.state is State.READY:
            self._dispatcher.ready(replica)
            self.prefixes.on_ready(replica)
            waiting, self._waiting = self._waiting, {}
            for stream in waiting.values():
                self._place(stream)
            return
        if replica.state is not State.DRAINING:
            self._dispatcher.gone(replica)
        if not self._hopeful():
            self._give_up_waiting()

    def began(self, request_id: str) -> None:
        self._dispatcher.began(request_id)

    def ended(self, request_id: str) -> None:
        self._dispatcher.ended(request_id)

    def cache_changed(self, replica: Replica, change: CacheChanged) -> None:
        self._dispatcher.cache_changed(replica, change.stored, change.evicted)

    def lost(self, replica: Replica, streams: list[Stream]) -> None:
        log.warning("%s: %d requests go on elsewhere", replica.name, len(streams))
        for stream in streams:
            stream.begun()
            stream.losses += 1
            if self._stopping:
                stream.end(WorkerDiedError("the server stopped before the request ended"))
            elif stream.losses >= _MOST_LOSSES:
                stream.end(
                    WorkerDiedError(f"{stream.losses} workers in turn ended while they computed this request")
                )
            elif not self._place(stream):
                stream.end(self._unavailable())

    # choosing

    def _place(self, stream: Stream) -> bool:
        """Gives a stream to a replica, or has it wait for one; False where it would wait in vain."""
        if (placement := self._dispatcher.place(stream, self._ready())) is not None:
            replica, prefiller, name = placement
            replica.submit(stream, None if prefiller is None else prefiller.prefill(stream, name))
        elif self._hopeful():
            self._waiting[stream.id] = stream
        else:
            return False
        return True

    def _ready(self) -> Iterable[Replica]:
        return (replica for replica in self._replicas if replica.state is State.READY and not self._stopping)

    def _hopeful(self) -> bool:
        """Whether a replica may be ready soon."""
        return not self._stopping and any(replica.state in COMING for replica in self._replicas)

    async def _wait_for_one(self) -> Replica:
        while (replica := min(self._ready(), key=_busyness, default=None)) is None:
            if not self._hopeful():
                raise self._unavailable()
            await self._next_news()
        return replica

    async def _next_news(self) -> None:
        """Until a replica's state changes."""
        await self._news.wait()

    def _give_up_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for stream in waiting.values():
            stream.end(self._unavailable())

    def _unavailable(self) -> WorkerUnavailableError:
        states = ", ".join(sorted({replica.state.value for replica in self._replicas})) or "not started"
        return WorkerUnavailableError(f"no worker takes requests now ({states}); try again soon")


def _busyness(replica: Replica) -> tuple[bool, int]:
    return replica.role == "prefill", replica.load
