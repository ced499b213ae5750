"""One replica of a model: its worker, started, watched and restarted, and the requests that wait on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum

from headrace.engine.stats import EngineStats
from headrace.errors import HeadraceError, RequestError, WorkerDiedError
from headrace.fleet.channel import Channel
from headrace.fleet.process import WorkerProcess, describe_status
from headrace.fleet.restart import RestartPolicy, Restarts
from headrace.fleet.stream import Stream
from headrace.worker.messages import (
    PROTOCOL_VERSION,
    Answer,
    Cancel,
    Drain,
    Drained,
    Embedded,
    Events,
    Failed,
    Ping,
    PrefixesListed,
    PrefixExplained,
    PrefixPinned,
    Question,
    Ready,
    Rejected,
    Stats,
    Submit,
    ToGateway,
)
from headrace.worker.settings import EXIT_LOAD_FAILED, Launch, WorkerSettings

log = logging.getLogger("headrace.fleet")

_LAST_WORD_SECONDS = 1.0
"""How long a last message may take to arrive after the process that sent it has ended."""


class State(str, Enum):
    """Where a replica stands."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    """Given up: the model cannot be loaded, or the worker ended again and again while loading it."""


class Replica:
    """Runs one worker after another until it is told to stop."""

    def __init__(self, name: str, settings: WorkerSettings, policy: RestartPolicy, channel: Channel) -> None:
        self.name = name
        self.settings = settings
        self.restarts = Restarts(policy)
        self.state = State.STARTING
        self.ready: Ready | None = None
        """What the last worker that was loaded said of itself."""
        self.reason = ""
        """Why the last worker ended; empty while none has."""
        self.settled = asyncio.Event()
        """Set once the first worker is ready, or will never be."""
        self.on_ready: Callable[[], None] | None = None
        """Called whenever a worker is ready, the first one and each that takes another's place."""
        self._channel = channel
        self._streams: dict[str, Stream] = {}
        self._questions: dict[str, asyncio.Future[Answer]] = {}
        self._process: WorkerProcess | None = None
        self._identity = ""
        self._ready_at: float | None = None
        self._refusal = ""
        self._stop = asyncio.Event()
        self._last_word = asyncio.Event()
        self._stats: EngineStats | None = None
        self._stats_asked: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int | None:
        """The worker's, None while there is none."""
        return self._process.pid if self._process else None

    @property
    def load(self) -> int:
        """Requests that have not ended, and questions not answered."""
        return len(self._streams) + len(self._questions)

    async def run(self) -> None:
        """Keeps a worker alive; returns when stopped or given up."""
        try:
            self.state = await self._supervise()
        finally:
            self.settled.set()

    async def _supervise(self) -> State:
        lives = 0
        while not self._stop.is_set():
            status = await self._live(f"{self.name}.{lives}")
            lives += 1
            if self._stop.is_set():
                break
            served = None if self._ready_at is None else asyncio.get_running_loop().time() - self._ready_at
            delay = self.restarts.ended(served, refused=status == EXIT_LOAD_FAILED)
            if delay is None:
                log.error("%s is given up: %s", self.name, self.reason)
                return State.FAILED
            log.warning("%s: %s; starting it again in %.1f s", self.name, self.reason, delay)
            self.state = State.RESTARTING
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay)
        return State.STOPPED

    def submit(self, message: Submit) -> Stream:
        """The replica must be ready."""
        assert self.state is State.READY
        assert message.id not in self._streams
        stream = self._streams[message.id] = Stream(message.id, self.cancel)
        self._channel.send(self._identity, message)
        return stream

    def cancel(self, request_id: str) -> None:
        """Ends the stream; nothing happens where it has ended already."""
        if stream := self._streams.pop(request_id, None):
            stream.end()
            self._channel.send(self._identity, Cancel(request_id))

    async def ask(self, question: Question) -> Answer:
        """The worker's answer to a question of a new id; the replica must be ready.

        Cancelling the call spares the worker what it has not computed yet.

        Raises RequestError where the worker rejects it, WorkerDiedError where it ends first.
        """
        assert self.state is State.READY
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._questions[question.id] = answer
        self._channel.send(self._identity, question)
        try:
            return await answer
        except asyncio.CancelledError:
            self._channel.send(self._identity, Cancel(question.id))
            raise
        finally:
            self._questions.pop(question.id, None)

    async def stats(self, timeout: float) -> EngineStats | None:
        """The worker's answer, or its last one where a long step delays it beyond `timeout` seconds."""
        if self.state in (State.READY, State.DRAINING):
            if self._stats_asked is None:
                self._stats_asked = asyncio.get_running_loop().create_future()
                self._channel.send(self._identity, Ping())
            await asyncio.wait([self._stats_asked], timeout=timeout)
        return self._stats

    def drain(self) -> None:
        """Lets the worker finish what it has accepted and end; ends one that is still loading."""
        self._stop.set()
        if self.state is State.READY:
            self.state = State.DRAINING
            self._channel.send(self._identity, Drain())
        elif self.state is not State.DRAINING:
            self.kill()

    def kill(self) -> None:
        """Ends the worker at once, for good."""
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
            launch = Launch(address=self._channel.address, identity=identity, settings=self.settings)
            self._process = await WorkerProcess.start(launch)
            if self._stop.is_set():
                self._process.kill()
            status = await self._process.wait()
            if status in (0, EXIT_LOAD_FAILED):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._last_word.wait(), _LAST_WORD_SECONDS)
        finally:
            self._process = None
            self._channel.detach(identity)
            self._abandon()
        loading = " while loading" if self._ready_at is None else ""
        self.reason = self._refusal or f"the worker {describe_status(status)}{loading}"
        return status

    def _abandon(self) -> None:
        """The worker is gone: whoever waits on it must know at once."""
        if self._stop.is_set():
            error: HeadraceError = WorkerDiedError("the server stopped before the request ended")
        else:
            error = WorkerDiedError("the worker that computed this request died; send the request again")
        for stream in self._streams.values():
            stream.end(error)
        self._streams.clear()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(error)
        self._stats = None
        self._answer_stats()

    def _on_message(self, message: ToGateway) -> None:
        match message:
            case Events():
                self._deliver(message)
            case Stats(engine=stats):
                self._stats = stats
                self._answer_stats()
            case Rejected(id=request_id, reason=reason):
                if stream := self._streams.pop(request_id, None):
                    stream.end(RequestError(reason))
                elif (question := self._questions.get(request_id)) and not question.done():
                    question.set_exception(RequestError(reason))
            case (
                PrefixExplained(id=asked)
                | PrefixesListed(id=asked)
                | PrefixPinned(id=asked)
                | Embedded(id=asked)
            ):
                if (question := self._questions.get(asked)) and not question.done():
                    question.set_result(message)
            case Ready():
                self._on_ready(message)
            case Failed(reason=reason):
                self._refusal = reason
                self._last_word.set()
            case Drained():
                self._last_word.set()

    def _deliver(self, message: Events) -> None:
        for event in message.events:
            stream = self._streams.get(event.id)
            if stream is None:  # cancelled while the event was under way
                continue
            if event.finish_reason is not None:
                del self._streams[event.id]
            stream.push(event)

    def _on_ready(self, ready: Ready) -> None:
        if ready.version != PROTOCOL_VERSION:
            self._refusal = f"the worker speaks version {ready.version}, this gateway {PROTOCOL_VERSION}"
            if self._process:
                self._process.kill()
            return
        self.ready = ready
        self._ready_at = asyncio.get_running_loop().time()
        if not self._stop.is_set():
            self.state = State.READY
            if self.on_ready is not None:
                self.on_ready()
        self.settled.set()

    def _answer_stats(self) -> None:
        if self._stats_asked and not self._stats_asked.done():
            self._stats_asked.set_result(None)
        self._stats_asked = None
