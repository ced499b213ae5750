"""The replicas behind one front door: requests go in, events come out, whatever happens to a worker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from headrace.engine.stats import EngineStats
from headrace.errors import WorkerUnavailableError
from headrace.fleet.channel import Channel
from headrace.fleet.prefixes import Prefixes
from headrace.fleet.replica import Replica, State
from headrace.fleet.restart import RestartPolicy
from headrace.fleet.stream import Stream
from headrace.worker.messages import Embed, Embedded, Ready, Submit
from headrace.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """A replica as /health shows it."""

    name: str
    model: str
    state: State
    pid: int | None
    fingerprint: str | None
    """Digest of the numerics fingerprint, None before the first worker was loaded."""
    restarts: int
    reason: str
    """Why the last worker ended; empty where none has."""


class Fleet:
    """Starts workers, watches them, and hands requests to them. Lives in one event loop.

    An asynchronous context manager: entering starts the workers, leaving ends them.
    """

    def __init__(self, settings: Sequence[WorkerSettings], policy: RestartPolicy | None = None) -> None:
        """One replica for each element of `settings`."""
        self._settings = settings
        self._policy = policy or RestartPolicy()
        self.prefixes = Prefixes()
        """What the replicas' prefix caches hold."""
        self._replicas: list[Replica] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._channel: Channel | None = None
        self._embeddings = itertools.count()

    async def start(self) -> None:
        """Returns when every replica is ready.

        Raises:
            WorkerUnavailableError: with the worker's own message, where one cannot be loaded.
        """
        self._channel = Channel()
        for number, settings in enumerate(self._settings):
            replica = Replica(f"worker-{number}", settings, self._policy, self._channel)
            self.prefixes.watch(replica)
            self._replicas.append(replica)
            self._tasks.append(asyncio.create_task(replica.run(), name=replica.name))
        try:
            for replica, task in zip(self._replicas, self._tasks, strict=True):
                await replica.settled.wait()
                if replica.state is not State.READY:
                    await task
                    raise WorkerUnavailableError(replica.reason)
        except BaseException:
            await self.close()
            raise

    @property
    def facts(self) -> Ready:
        """What the workers say of the model: context length, fingerprint, cache; after `start`."""
        ready = self._replicas[0].ready
        assert ready is not None
        return ready

    def submit(self, message: Submit) -> Stream:
        """Hands the request to the ready replica with the fewest; its id must be new.

        Raises:
            WorkerUnavailableError: no replica is ready.
        """
        return self._least_loaded().submit(message)

    async def embed(self, prompt: list[int]) -> list[float]:
        """The vector of a prompt, of length 1, by the ready replica that has the fewest requests.

        Raises:
            RequestError: the prompt is too long, or the model gives no vectors.
            WorkerUnavailableError, WorkerDiedError: no replica is ready, or it ended before it answered.
        """
        answer = await self._least_loaded().ask(Embed(f"embedding-{next(self._embeddings)}", prompt))
        assert isinstance(answer, Embedded)
        return answer.vector

    def _least_loaded(self) -> Replica:
        ready = [replica for replica in self._replicas if replica.state is State.READY]
        if not ready:
            states = ", ".join(sorted({replica.state.value for replica in self._replicas})) or "not started"
            raise WorkerUnavailableError(f"no worker takes requests now ({states}); try again soon")
        return min(ready, key=lambda replica: replica.load)

    def cancel(self, request_id: str) -> None:
        """Ends the request's stream and frees what it holds; nothing happens where it has ended."""
        for replica in self._replicas:
            replica.cancel(request_id)

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
                model=replica.ready.model if replica.ready else replica.settings.model,
                state=replica.state,
                pid=replica.pid,
                fingerprint=replica.ready.fingerprint.digest() if replica.ready else None,
                restarts=replica.restarts.count,
                reason=replica.reason,
            )
            for replica in self._replicas
        ]

    async def drain(self, timeout: float) -> bool:
        """Lets workers finish what they have accepted; no new request is taken.

        Workers that need more than `timeout` seconds are ended. True where none had to be.
        """
        for replica in self._replicas:
            replica.drain()
        late: set[asyncio.Task[None]] = set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout)
        await self.close()
        return not late

    async def close(self) -> None:
        """Ends the workers at once; their requests get WorkerDiedError."""
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
