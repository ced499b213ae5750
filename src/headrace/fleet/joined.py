"""A replica on another host: its worker came by itself, and may fall silent, come back, and leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.errors import WorkerDiedError
from headrace.fleet.channel import Channel
from headrace.fleet.replica import Replica, Watcher
from headrace.fleet.state import State
from headrace.fleet.stream import Stream
from headrace.worker.messages import (
    LOST_BEATS,
    Beat,
    CacheChanged,
    Drain,
    Drained,
    Failed,
    Hello,
    Leaving,
    Ready,
    Refused,
    Reset,
    ToGateway,
)

log = logging.getLogger("headrace.fleet")

_FORGOTTEN_BEATS = 60
"""A worker that was lost for so long is not expected any more."""


class _Nobody:
    """The watcher of a replica that is in no fleet, and so has no streams."""

    def changed(self, replica: Replica) -> None:
        pass

    def began(self, request_id: str) -> None:
        pass

    def ended(self, request_id: str) -> None:
        pass

    def cache_changed(self, replica: Replica, change: CacheChanged) -> None:
        pass

    def lost(self, replica: Replica, streams: list[Stream]) -> None:
        raise AssertionError(f"{replica.name} had streams that no fleet gave it")


_NOBODY = _Nobody()


class JoinedReplica(Replica):
    """One session after another with the same worker process.

    What a worker still computes for a session that is over is nobody's: it is told to forget that before it
    is given anything in the next one.
    """

    def __init__(self, name: str, hello: Hello, channel: Channel, objection: Callable[[Ready], str]) -> None:
        """`objection` says why a worker of such properties cannot be used; empty where it can."""
        super().__init__(name, hello.model, channel, _NOBODY, hello.role)
        self._pid = hello.pid
        self._objection = objection
        self._silent = 0
        self._evacuate_at: float | None = None
        self._wanted = True
        self._over = asyncio.Event()
        self.left = False
        """Whether the worker has ended, or was turned away for good."""

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def forgotten(self) -> bool:
        """Whether there is no point in expecting it any longer."""
        return self.left or (not self._identity and self._silent > _FORGOTTEN_BEATS)

    @property
    def free(self) -> bool:
        """Whether it is in no fleet."""
        return self._watcher is _NOBODY

    def enter(self, watcher: Watcher) -> None:
        """It is the fleet's of this watcher, until that has drained or killed it."""
        self._watcher = watcher
        self._wanted = True
        self._over.clear()

    async def run(self) -> None:
        """Until the fleet is through with it."""
        await self._over.wait()

    def begin(self, identity: str) -> None:
        """The worker has introduced itself, perhaps again, and will load its model unless it has."""
        self._end_session(State.STARTING, "the worker came back")
        if not self._wanted:
            self._leave_fleet()
        self._identity, self._silent = identity, 0
        self._channel.attach(identity, self._on_message)

    def beat(self) -> None:
        """To be called once in the time between two signs of life, of which it sends one.

        Counted and not timed, so that a gateway which was held up hears first what has come meanwhile.
        """
        self._silent += 1
        if not self._identity:
            return
        if not self._channel.send(self._identity, Beat()):
            self._end_session(State.LOST, "its connection has ended")
        elif self._silent > LOST_BEATS:
            self._end_session(State.LOST, "nothing is heard of it")
        else:
            self._settle()

    def drain(self) -> None:
        """Lets the worker finish what it has accepted; then it is free for another fleet of its model."""
        self._wanted = False
        if self.state is State.READY:
            self._become(State.DRAINING)
        self._settle()

    def kill(self) -> None:
        """Takes all from the worker at once."""
        self._wanted = False
        self._dismiss()

    def _on_message(self, message: ToGateway) -> None:
        self._silent = 0
        super()._on_message(message)
        self._settle()

    def _on_ready(self, ready: Ready) -> None:
        if refusal := self._objection(ready):
            self._send(Refused(refusal))
            self._leave(State.FAILED, refusal)
            return
        self.ready = ready
        if self._wanted and self.state is State.STARTING:
            self._become(State.READY)

    def _on_last_word(self, message: ToGateway) -> None:
        match message:
            case Leaving(seconds=seconds):
                log.info("%s is leaving", self.name)
                self._evacuate_at = asyncio.get_running_loop().time() + seconds
                self._become(State.DRAINING)
            case Drained():
                self._leave(State.STOPPED, "the worker has left")
            case Failed(reason=reason):
                self._leave(State.FAILED, reason)

    def _settle(self) -> None:
        """Takes the next step of an end that has begun."""
        if self.state is not State.DRAINING:
            if not self._wanted:
                self._dismiss()
        elif self.load == 0:
            if self._wanted:
                self._send(Drain())
            else:
                self._dismiss()
        elif self._evacuate_at is not None and asyncio.get_running_loop().time() >= self._evacuate_at:
            self._evacuate_at = None
            self.evacuate()

    def _dismiss(self) -> None:
        """The fleet is through with the worker, but not the worker with the gateway."""
        if self._identity:
            self._send(Reset())
        self._end_session(State.STOPPED, "its fleet has let it go")
        self._leave_fleet()

    def _leave_fleet(self) -> None:
        self._watcher = _NOBODY
        self._wanted = True
        self._over.set()

    def _leave(self, state: State, reason: str) -> None:
        self.left = True
        self._end_session(state, reason)
        self._over.set()

    def _end_session(self, state: State, reason: str) -> None:
        """What the worker had goes back, once the state says that it is none of its own any more."""
        self._evacuate_at = None
        if not self._identity:
            self._become(state)
            return
        self._channel.detach(self._identity)
        self._identity = ""
        if state is not State.STARTING:
            log.warning("%s: %s", self.name, reason)
        self.reason = reason
        self._become(state)
        self._abandon(WorkerDiedError("the worker that was asked is gone; try again"))
