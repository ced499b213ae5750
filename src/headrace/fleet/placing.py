"""Who computes a stream: it is given to a replica, or waits for one, and goes on elsewhere when that ends."""

from __future__ import annotations

import logging

from headrace.errors import HeadraceError, WorkerDiedError
from headrace.fleet.crew import Crew
from headrace.fleet.dispatch import Dispatcher
from headrace.fleet.prefixes import Prefixes
from headrace.fleet.replica import Replica
from headrace.fleet.sizing import Sizing
from headrace.fleet.state import State
from headrace.fleet.stream import Stream
from headrace.worker.messages import CacheChanged, Submit

log = logging.getLogger("headrace.fleet")

_MOST_LOSSES = 4
"""Workers that may end in turn before they brought a request any further: it may be what ended them."""


class Placing:
    """Watches the replicas (`Watcher`): what becomes of one says where streams can go."""

    def __init__(self, crew: Crew, dispatcher: Dispatcher, prefixes: Prefixes, sizing: Sizing) -> None:
        """The last two hear, too, from replicas that are ready and of streams that come and end."""
        self._crew = crew
        self._dispatcher = dispatcher
        self._prefixes = prefixes
        self._sizing = sizing
        self._waiting: dict[str, Stream] = {}
        """Requests for which no replica was ready, in order of arrival."""

    @property
    def waiting(self) -> int:
        """Requests that wait for a replica."""
        return len(self._waiting)

    def submit(self, message: Submit) -> Stream:
        """Gives the request to a replica, or keeps it until one is ready; its id must be new.

        Raises WorkerUnavailableError: no replica is ready, nor will be.
        """
        facts = self._crew.facts
        stream = Stream(message, self._cancel, model=facts.model if facts else "")
        if not self._place(stream):
            raise self._crew.unavailable()
        self._sizing.arrived(stream)
        return stream

    def give_up_waiting(self) -> None:
        """Requests that wait do so in vain."""
        waiting, self._waiting = self._waiting, {}
        for stream in waiting.values():
            self._end(stream, self._crew.unavailable())

    # what replicas tell

    def changed(self, replica: Replica) -> None:
        self._crew.changed()
        if replica.state is State.READY:
            self._dispatcher.ready(replica)
            self._prefixes.on_ready(replica)
            waiting, self._waiting = self._waiting, {}
            for stream in waiting.values():
                self._place(stream)
            return
        if replica.state is not State.DRAINING:
            self._dispatcher.gone(replica)
        if not self._crew.hopeful:
            self.give_up_waiting()

    def began(self, request_id: str) -> None:
        self._dispatcher.began(request_id)

    def ended(self, request_id: str) -> None:
        self._dispatcher.ended(request_id)
        self._sizing.ended(request_id)

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
            if self._crew.stopping:
                self._end(stream, WorkerDiedError("the server stopped before the request ended"))
            elif stream.losses >= _MOST_LOSSES:
                told = f"{stream.losses} workers in turn ended while they computed this request"
                self._end(stream, WorkerDiedError(told))
            elif not self._place(stream):
                self._end(stream, self._crew.unavailable())

    def _place(self, stream: Stream) -> bool:
        """Gives a stream to a replica, or has it wait for one; False where it would wait in vain."""
        if (placement := self._dispatcher.place(stream, self._crew.ready())) is not None:
            replica, prefiller, name = placement
            replica.submit(stream, None if prefiller is None else prefiller.prefill(stream, name))
        elif self._crew.hopeful:
            self._waiting[stream.id] = stream
        else:
            return False
        return True

    def _cancel(self, request_id: str) -> None:
        """Ends the request's stream and frees what it holds; nothing happens where it has ended."""
        if stream := self._waiting.pop(request_id, None):
            self._end(stream)
            return
        any(replica.cancel(request_id) for replica in self._crew.replicas)

    def _end(self, stream: Stream, error: HeadraceError | None = None) -> None:
        """Of one that no replica has."""
        stream.end(error)
        self._sizing.ended(stream.id)
