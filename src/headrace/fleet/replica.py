"""One replica of a model as the gateway sees it: a worker's state, and the requests that it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Protocol

from headrace.engine.stats import EngineStats
from headrace.errors import HeadraceError, RequestError
from headrace.fleet.channel import Channel
from headrace.fleet.questions import Questions
from headrace.fleet.state import ReplicaHealth, Role, State
from headrace.fleet.stream import Stream
from headrace.worker.messages import (
    PROTOCOL_VERSION,
    Answer,
    CacheChanged,
    Cancel,
    Embedded,
    Events,
    Handoff,
    Prefill,
    Prefilled,
    PrefixesListed,
    PrefixExplained,
    PrefixPinned,
    Question,
    Ready,
    Rejected,
    Stats,
    Submit,
    ToGateway,
    ToWorker,
)


class Watcher(Protocol):
    """Whoever owns the replica."""

    def changed(self, replica: Replica) -> None:
        """The replica's state is another now."""
        ...

    def lost(self, replica: Replica, streams: list[Stream]) -> None:
        """The replica does not compute these any more, and they have not ended."""
        ...

    def began(self, request_id: str) -> None:
        """The replica has brought a request its first event, or computed the prompt of a handoff."""
        ...

    def ended(self, request_id: str) -> None:
        """A request has ended, or a handoff's prompt is computed or cancelled."""
        ...

    def cache_changed(self, replica: Replica, change: CacheChanged) -> None:
        """What the replica's prefix cache holds is another now."""
        ...


class Replica(ABC):
    """The session with a replica's worker, or with one worker after another."""

    def __init__(self, name: str, model: str, channel: Channel, watcher: Watcher, role: Role) -> None:
        """`model` is its name for as long as no worker has told a better one."""
        self.name = name
        self.role: Role = role
        self.ready: Ready | None = None
        """What the last worker that was loaded said of itself."""
        self.reason = ""
        """Why the last worker ended; empty while none has."""
        self._model = model
        self._state = State.STARTING
        self._channel = channel
        self._watcher = watcher
        self._identity = ""
        self._streams: dict[str, Stream] = {}
        self._prefills: dict[str, Stream] = {}
        """Prompts that it computes for others, by the handoff's id."""
        self._questions = Questions(self._send)

    @property
    def state(self) -> State:
        return self._state

    @property
    def model(self) -> str:
        return self.ready.model if self.ready else self._model

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The worker's on its own host, None while there is none."""

    @property
    def restarts(self) -> int:
        """Workers that took another's place."""
        return 0

    @property
    def load(self) -> int:
        """Requests that have not ended, prompts for others, and questions not answered."""
        return len(self._streams) + len(self._prefills) + len(self._questions)

    @abstractmethod
    async def run(self) -> None:
        """Keeps the session alive; returns when it is stopped or given up."""

    @abstractmethod
    def drain(self) -> None:
        """Lets the worker finish what it has accepted and end; ends one that is still loading."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the worker at once, for good."""

    def submit(self, stream: Stream, handoff: Handoff | None = None) -> None:
        """Has the worker compute what is left of the stream. The replica must be ready."""
        assert self.state is State.READY
        assert stream.id not in self._streams
        self._streams[stream.id] = stream
        stream.waits = True
        if not stream.output and self.ready is not None:
            stream.fingerprint = self.ready.fingerprint
        self._send(stream.rest(handoff))

    def prefill(self, stream: Stream, handoff_id: str) -> Handoff:
        """Has the worker compute the stream's prompt for another one. The replica must be ready."""
        assert self.state is State.READY and self.ready is not None
        asked = stream.message
        self._prefills[handoff_id] = stream
        stream.on_begun = partial(self._cancel_prefill, handoff_id)
        self._send(Prefill(handoff_id, stream.tokens, asked.priority, asked.adapter, asked.salt))
        return Handoff(handoff_id, self.ready.transfer)

    def _cancel_prefill(self, handoff_id: str) -> None:
        if self.state in (State.READY, State.DRAINING):
            self._send(Cancel(handoff_id))  # a computed one, too: it is kept for whoever is to fetch it
        if self._prefills.pop(handoff_id, None) is not None:
            self._watcher.ended(handoff_id)

    def cancel(self, request_id: str) -> bool:
        """Ends the stream; False where it is not here, or has ended already."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return False
        stream.end()
        stream.begun()
        self._send(Cancel(request_id))
        self._watcher.ended(request_id)
        return True

    def own_stream(self, message: Submit) -> Stream:
        """Has this very worker compute the request; the stream ends with it."""
        stream = Stream(message, self.cancel, moves=False)
        self.submit(stream)
        return stream

    def evacuate(self) -> None:
        """Gives up all streams that another worker can go on with."""
        moving = [stream for stream in self._streams.values() if stream.moves]
        for stream in moving:
            del self._streams[stream.id]
            self._send(Cancel(stream.id))
        if moving:
            self._watcher.lost(self, moving)

    async def ask(self, question: Question) -> Answer:
        """The worker's answer to a question of a new id; the replica must be ready.

        Cancelling the call spares the worker what it has not computed yet.

        Raises RequestError where the worker rejects it, WorkerDiedError where it ends first.
        """
        assert self.state is State.READY
        return await self._questions.ask(question)

    async def stats(self, timeout: float) -> EngineStats | None:
        """The worker's answer, or its last one where a long step delays it beyond `timeout` seconds."""
        if self.state in (State.READY, State.DRAINING):
            await self._questions.ping(timeout)
        return self._questions.stats

    def health(self) -> ReplicaHealth:
        """As it is now."""
        return ReplicaHealth(
            name=self.name,
            model=self.model,
            role=self.role,
            state=self.state,
            pid=self.pid,
            fingerprint=self.ready.fingerprint.digest() if self.ready else None,
            restarts=self.restarts,
            reason=self.reason,
        )

    # for the kinds of replica

    def _send(self, message: ToWorker) -> None:
        self._channel.send(self._identity, message)

    def _become(self, state: State) -> None:
        if state is not self._state:
            self._state = state
            self._watcher.changed(self)

    def _abandon(self, error: HeadraceError) -> None:
        """The worker is gone: whoever waits on it must know at once. The state tells so already."""
        streams, self._streams = list(self._streams.values()), {}
        moving = [stream for stream in streams if stream.moves]
        for stream in streams:
            if not stream.moves:
                stream.end(error)
        self._questions.abandon(error)
        self._prefills.clear()
        if moving:
            self._watcher.lost(self, moving)

    def _on_message(self, message: ToGateway) -> None:
        match message:
            case Events():
                self._deliver(message)
            case Stats(engine=stats):
                self._questions.told(stats)
            case Prefilled(id=handoff_id):
                if self._prefills.pop(handoff_id, None) is not None:
                    self._watcher.began(handoff_id)
                    self._watcher.ended(handoff_id)
            case CacheChanged():
                self._watcher.cache_changed(self, message)
            case Rejected(id=request_id, reason=reason):
                self._watcher.ended(request_id)
                if self._prefills.pop(request_id, None) is not None:
                    return
                if stream := self._streams.pop(request_id, None):
                    stream.end(RequestError(reason))
                else:
                    self._questions.rejected(request_id, reason)
            case PrefixExplained() | PrefixesListed() | PrefixPinned() | Embedded():
                self._questions.answered(message)
            case Ready():
                self._on_ready(message)
            case _:
                self._on_last_word(message)

    @abstractmethod
    def _on_ready(self, ready: Ready) -> None:
        """A worker has loaded its model."""

    @abstractmethod
    def _on_last_word(self, message: ToGateway) -> None:
        """The worker could not load, or has drained."""

    def _deliver(self, message: Events) -> None:
        for event in message.events:
            stream = self._streams.get(event.id)
            if stream is None:  # cancelled while the event was under way
                continue
            if stream.waits:
                stream.waits = False
                stream.cached = max(stream.cached, event.cached_tokens)
                self._watcher.began(event.id)
            stream.push(event)
            if event.finish_reason is not None:
                del self._streams[event.id]
                self._watcher.ended(event.id)


def version_refusal(ready: Ready) -> str:
    """Why a worker of another version cannot be used; empty where it can."""
    if ready.version == PROTOCOL_VERSION:
        return ""
    return f"the worker speaks version {ready.version}, this gateway {PROTOCOL_VERSION}"
