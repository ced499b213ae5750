"""The replicas behind one front door: requests go in, events come out, whatever happens to a worker."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType

import msgspec

from headrace.engine.request import PrefixNamespace
from headrace.engine.stats import EngineStats
from headrace.errors import RequestError, WorkerDiedError, WorkerUnavailableError
from headrace.fleet.balance import Ask
from headrace.fleet.channel import Channel
from headrace.fleet.dispatch import Dispatcher, ask_of
from headrace.fleet.joined import JoinedReplica
from headrace.fleet.local import LocalReplica
from headrace.fleet.planner import Limits
from headrace.fleet.prefixes import Prefixes
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.fleet.restart import RestartPolicy
from headrace.fleet.rolling import Rolling
from headrace.fleet.shape import FleetShape
from headrace.fleet.sizing import Sizing
from headrace.fleet.state import COMING, ReplicaHealth, Role, State
from headrace.fleet.stream import Stream
from headrace.worker.messages import CacheChanged, Embed, Embedded, Ready, Submit
from headrace.worker.settings import WorkerSettings

log = logging.getLogger("headrace.fleet")

_MOST_LOSSES = 4
"""Workers that may end in turn before they brought a request any further: it may be what ended them."""
_EMBED_ATTEMPTS = 4
_SERVING = COMING | {State.READY}
_OTHER: dict[Role, Role] = {"prefill": "decode", "decode": "prefill"}
"""What others must be for where a worker is for one thing alone."""


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
        limits: Limits | None = None,
    ) -> None:
        """Replicas that are alike but for their roles; one where no shape is given.

        The registry's workers of the model of this name join them. Roles move as the limits need it.
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
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._channel: Channel | None = None
        self._embeddings = itertools.count()
        self._numbers = itertools.count()
        """Of replicas on this host."""
        self.rolling = Rolling(self)
        """Drains and replaces workers."""
        self.sizing = Sizing(self, settings, limits)
        """Plans by what was asked lately."""
        self._moving: asyncio.Task[None] | None = None
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
        for role in self._shape.roles():
            self.begin(self.recruit(role))
        local = list(self._tasks.items())
        if self._registry is not None:
            self._registry.attach(self._model, self)
        try:
            for started, task in local:
                while started.state in COMING and not task.done():
                    await self.next_news()
                if started.state is not State.READY:
                    await task
                    raise WorkerUnavailableError(started.reason)
            while (first := next(iter(self._ready()), None)) is None:
                await self.next_news()
            self._facts = first.ready
            self._moving = asyncio.create_task(self.sizing.run(), name="moving roles")
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

    @property
    def workers(self) -> int:
        """Those that take requests now."""
        return sum(1 for _ in self._ready())

    def first_token_in(self, prompt: Sequence[int] | int, salt: str = "") -> float | None:
        """Predicted seconds to the first token, were a request with this prompt submitted now.

        Of a prompt that is known by its length alone, nothing is expected to be cached. None where no worker
        is ready.
        """
        if isinstance(prompt, int):
            ask = Ask(max(1, prompt))
        else:
            ask = ask_of(prompt, PrefixNamespace(self.facts.model, "", salt))
        return self._dispatcher.first_token_in(ask, self._ready())

    def submit(self, message: Submit) -> Stream:
        """Hands the request to a replica, or keeps it until one is ready; its id must be new.

        Raises:
            WorkerUnavailableError: no replica is ready, nor will be.
        """
        stream = Stream(message, self.cancel, model=self._facts.model if self._facts else "")
        if not self._place(stream):
            raise self._unavailable()
        self.sizing.arrived(stream)
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
            self.sizing.ended(request_id)
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
        return [replica.health() for replica in self._replicas]

    async def drain(self, timeout: float) -> bool:
        """Lets workers finish what they have accepted; no new request is taken.

        Workers that need more than `timeout` seconds are ended. True where none had to be.
        """
        self._stop()
        for replica in self._replicas:
            replica.drain()
        late: set[asyncio.Task[None]] = set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=timeout)
        await self.close()
        return not late

    async def close(self) -> None:
        """Ends the workers at once; their requests get WorkerDiedError."""
        self._stop()
        for replica in self._replicas:
            replica.kill()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
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
        for task in (self.rolling.task, self._moving):
            if task is not None:
                task.cancel()
        self._give_up_waiting()
        if self._registry is not None:
            self._registry.detach(self._model, self)

    # workers that come and go

    @property
    def replicas(self) -> Sequence[Replica]:
        """All of them, whatever their state."""
        return self._replicas

    def set_role(self, name: str, role: Role) -> None:
        """What a worker is for from now on. Streams that run end where they are.

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

    def recruit(self, role: Role, like: Ready | None = None) -> LocalReplica:
        """A replica on this host, to be started by `begin`; its cache as large as that of `like`."""
        assert self._channel is not None
        settings = self._settings
        if like is not None and settings.cache_tokens is None:
            # What others have taken by now is no reason for a smaller one.
            settings = msgspec.structs.replace(settings, cache_bytes=like.cache_bytes)
        name = f"worker-{next(self._numbers)}"
        replica = LocalReplica(name, settings, self._policy, self._channel, self, role)
        self.prefixes.watch(replica)
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
        if (first := next(iter(self._ready()), None)) is not None and first.ready is not None:
            self._facts = first.ready  # which may be of other weights

    def add(self, replica: JoinedReplica) -> None:
        """A worker has joined, or will soon be ready again; it is the fleet's for as long as it runs."""
        self.begin(replica)
        self._tasks[replica].add_done_callback(lambda _: self._remove(replica))
        self._replicas.append(replica)
        self.prefixes.watch(replica)

    def _remove(self, replica: Replica) -> None:
        del self._tasks[replica]
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
        self.sizing.ended(request_id)

    def cache_changed(self, replica: Replica, change: CacheChanged) -> None:
        self._dispatcher.cache_changed(replica, change.stored, change.evicted)

    def lost(self, replica: Replica, streams: list[Stream]) -> None:
        log.warning("%s: %d requests go on elsewhere", replica.name, len(streams))
        for stream in streams:
            stream.begun()
            if replica.state is State.DRAINING:
                self._dispatcher.ended(stream.id)
            else:
                stream.losses += 1
            if self._stopping:
                stream.end(WorkerDiedError("the server stopped before the request ended"))
                self.sizing.ended(stream.id)
            elif stream.losses >= _MOST_LOSSES:
                stream.end(
                    WorkerDiedError(f"{stream.losses} workers in turn ended while they computed this request")
                )
                self.sizing.ended(stream.id)
            elif not self._place(stream):
                stream.end(self._unavailable())
                self.sizing.ended(stream.id)

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
            await self.next_news()
        return replica

    async def next_news(self) -> None:
        """Until a replica's state changes."""
        await self._news.wait()

    def _give_up_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for stream in waiting.values():
            stream.end(self._unavailable())
            self.sizing.ended(stream.id)

    def _unavailable(self) -> WorkerUnavailableError:
        states = ", ".join(sorted({replica.state.value for replica in self._replicas})) or "not started"
        return WorkerUnavailableError(f"no worker takes requests now ({states}); try again soon")


def _busyness(replica: Replica) -> tuple[bool, int]:
    return replica.role == "prefill", replica.load
