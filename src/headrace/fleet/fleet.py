"""The replicas behind one front door: requests go in, events come out, whatever happens to a worker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from types import TracebackType

from headrace.engine.request import PrefixNamespace
from headrace.engine.stats import EngineStats
from headrace.errors import WorkerDiedError
from headrace.fleet.balance import Ask
from headrace.fleet.channel import Channel
from headrace.fleet.crew import Crew
from headrace.fleet.dispatch import Dispatcher, ask_of
from headrace.fleet.local import LocalReplica
from headrace.fleet.placing import Placing
from headrace.fleet.planner import Limits
from headrace.fleet.prefixes import Prefixes
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.fleet.restart import RestartPolicy
from headrace.fleet.rolling import Rolling
from headrace.fleet.shape import FleetShape
from headrace.fleet.sizing import Sizing
from headrace.fleet.state import ReplicaHealth, Role
from headrace.fleet.stream import Stream
from headrace.worker.messages import Embed, Embedded, Ready, Submit
from headrace.worker.settings import WorkerSettings

_EMBED_ATTEMPTS = 4


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
        self._registry = registry
        self._model = model
        self._shape = shape or FleetShape()
        self._channel: Channel | None = None
        self._crew = Crew(settings, policy or RestartPolicy())
        self._dispatcher = Dispatcher(settings.max_batch_tokens)
        self.prefixes = Prefixes(self._crew)
        """What the replicas' prefix caches hold."""
        self.rolling = Rolling(self._crew)
        """Drains and replaces workers."""
        self.sizing = Sizing(self._crew, settings, limits)
        """Plans by what was asked lately."""
        self._placing = Placing(self._crew, self._dispatcher, self.prefixes, self.sizing)
        self._moving: asyncio.Task[None] | None = None
        self._embeddings = itertools.count()

    async def start(self) -> None:
        """Returns when every replica is ready; where all are to join from elsewhere, when the first one is.

        Raises:
            WorkerUnavailableError: with the worker's own message, where one cannot be loaded.
        """
        self._channel = Channel()
        self._crew.open(self._channel, self._placing)
        local = [self._crew.recruit(role) for role in self._shape.roles()]
        for replica in local:
            self._crew.begin(replica)
        if self._registry is not None:
            self._registry.attach(self._model, self._crew)
        try:
            await self._crew.until_ready(local)
            self._moving = asyncio.create_task(self.sizing.run(), name="moving roles")
        except BaseException:
            await self.close()
            raise

    @property
    def facts(self) -> Ready:
        """What the workers say of the model: context length, fingerprint, cache; after `start`."""
        assert self._crew.facts is not None
        return self._crew.facts

    @property
    def cache_bytes(self) -> int:
        """Of the caches on this host together."""
        local = (replica for replica in self.replicas if isinstance(replica, LocalReplica))
        return sum(replica.ready.cache_bytes for replica in local if replica.ready)

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return self._placing.waiting + sum(replica.load for replica in self.replicas)

    @property
    def workers(self) -> int:
        """Those that take requests now."""
        return sum(1 for _ in self._crew.ready())

    @property
    def replicas(self) -> Sequence[Replica]:
        """All of them, whatever their state."""
        return self._crew.replicas

    def health(self) -> list[ReplicaHealth]:
        """Every replica's state."""
        return [replica.health() for replica in self.replicas]

    async def stats(self, timeout: float = 1.0) -> dict[str, EngineStats]:
        """Gauges and counters by replica; without those that have no worker. `timeout` in seconds.

        Counters begin at zero again when a worker is restarted.
        """
        return await self._crew.stats(timeout)

    def set_role(self, name: str, role: Role) -> None:
        """What a worker is for from now on. Streams that run end where they are.

        Raises RequestError: 404, there is none of that name; 409, nobody would be left for something.
        """
        self._crew.set_role(name, role)

    def first_token_in(self, prompt: Sequence[int] | int, salt: str = "") -> float | None:
        """Predicted seconds to the first token, were a request with this prompt submitted now.

        Of a prompt that is known by its length alone, nothing is expected to be cached. None where no worker
        is ready.
        """
        if isinstance(prompt, int):
            ask = Ask(max(1, prompt))
        else:
            ask = ask_of(prompt, PrefixNamespace(self.facts.model, "", salt))
        return self._dispatcher.first_token_in(ask, self._crew.ready())

    def submit(self, message: Submit) -> Stream:
        """Hands the request to a replica, or keeps it until one is ready; its id must be new.

        Raises:
            WorkerUnavailableError: no replica is ready, nor will be.
        """
        return self._placing.submit(message)

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

    async def _wait_for_one(self) -> Replica:
        while (replica := min(self._crew.ready(), key=_busyness, default=None)) is None:
            if not self._crew.hopeful:
                raise self._crew.unavailable()
            await self._crew.next_news()
        return replica

    async def drain(self, timeout: float) -> bool:
        """Lets workers finish what they have accepted; no new request is taken.

        Workers that need more than `timeout` seconds are ended. True where none had to be.
        """
        self._stop()
        all_ended = await self._crew.drain(timeout)
        await self.close()
        return all_ended

    async def close(self) -> None:
        """Ends the workers at once; their requests get WorkerDiedError."""
        self._stop()
        await self._crew.kill()
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
        self._crew.stop()
        for task in (self.rolling.task, self._moving):
            if task is not None:
                task.cancel()
        self._placing.give_up_waiting()
        if self._registry is not None:
            self._registry.detach(self._model, self._crew)


def _busyness(replica: Replica) -> tuple[bool, int]:
    return replica.role == "prefill", replica.load
