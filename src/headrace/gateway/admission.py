"""Who is let in: limits of each key, a bounded and fair queue for each model, a door closed for a drain."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.errors import RequestError
from headrace.gateway.callers import Caller
from headrace.gateway.errors import UnavailableError
from headrace.gateway.limits import Refusal
from headrace.gateway.waiting_room import UNBOUNDED, Capacity, Ticket, WaitingRoom

DRAINING = "The server is shutting down and takes no new requests."
_WINDOW_SECONDS = 10.0
"""Over which it is measured how fast the queue drains."""
_LONGEST_RETRY_SECONDS = 60


class DrainRate:
    """How many sequences leave the queue in a second, over the last seconds. Time is passed in."""

    def __init__(self, window: float = _WINDOW_SECONDS):
        self._window = window
        self._left: deque[float] = deque(maxlen=4096)
        self._latest = 1.0
        """The last rate that was measured; a guess before the first."""

    def left(self, now: float) -> None:
        """A sequence left the queue for the engine's places."""
        self._left.append(now)

    def per_second(self, now: float) -> float:
        """The rate; the last one known where nothing left in the window, less and less of it."""
        while len(self._left) > 1 and self._left[0] < now - self._window:
            self._left.popleft()
        if not self._left:
            return self._latest
        if (since := now - self._left[-1]) > self._window:
            return min(self._latest, 1.0 / since)
        if len(self._left) > 1:
            self._latest = len(self._left) / max(0.1, now - self._left[0])
        return self._latest


class Room(WaitingRoom):
    """The waiting room of one model: a queue before one model holds up no other."""

    def __init__(self, max_queue: int, capacity: Capacity, engines: Callable[[], int]):
        super().__init__(max_queue, capacity)
        self.engines = engines
        self.drain_rate = DrainRate()


class Admission:
    """Lets requests in, at once or when it is their turn, and counts their sequences."""

    def __init__(self, max_queue: int, capacity: Capacity = UNBOUNDED):
        """Of each model: sequences that may wait, and what each of its engines is given at a time."""
        self.max_queue = max_queue
        self.capacity = capacity
        self.workers: Callable[[str], int] = lambda model: 1
        """How many engines a model has now."""
        self.draining = False
        self.admitted = 0
        """Sequences that wait or run."""
        self._rooms: dict[str, Room] = {}
        self._kept_open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._seats: dict[Ticket, Seat] = {}

    @property
    def waiting(self) -> int:
        """Sequences without a first token."""
        return sum(room.total_waiting for room in self._rooms.values())

    def room(self, model: str) -> Room:
        """Where the model's requests wait."""
        room = self._rooms.get(model)
        if room is None:
            room = self._rooms[model] = Room(self.max_queue, self.capacity, lambda: self.workers(model))
        return room

    def open_room(self, model: str, capacity: Capacity) -> None:
        """Gives a model a room of its own capacity, whatever others have: of one that is served elsewhere."""
        self._rooms[model] = Room(self.max_queue, capacity, lambda: 1)

    def expected_wait(self, model: str, now: float) -> float:
        """Seconds that a request which came now would wait for its turn; `now` is time.monotonic's."""
        room = self._rooms.get(model)
        if room is None or room.has_room:
            return 0.0
        return (room.held + 1) / room.drain_rate.per_second(now)

    def check(self, caller: Caller, model: str, sequences: int = 1, priority: int = 0) -> None:
        """Refuses at once what `admit` would refuse whatever its prompt is. Changes nothing."""
        self._check_open(sequences, draining=self.draining)
        self._check_limits(caller, 0)
        room = self._rooms.get(model)
        if room is not None and room.displaced_by(self._ticket(caller, sequences, priority=priority)) is None:
            raise self._full(room, caller, sequences)

    def admit(
        self,
        caller: Caller,
        model: str,
        *,
        sequences: int = 1,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        priority: int = 0,
        background: bool = False,
        counted: bool = True,
    ) -> Seat:
        """A seat, to be entered with `async with`, which waits until it is the request's turn at the model.

        `prompt_tokens` are those of all prompts, `output_tokens` the most that all sequences may generate,
        `priority` orders one caller's requests, lower first. `background` requests run in the gaps that
        others leave; like those that are not `counted`, which go on with a request that was let in, they do
        not count for the caller's limits. Entering raises UnavailableError: 503 while draining; 429 where the
        caller is at a limit or the queue is full, and later where one comes that is more urgent or fills less
        of the queue.
        """
        self._check_open(sequences, draining=self.draining and (counted or background))
        ticket = self._ticket(caller, sequences, prompt_tokens, output_tokens, priority, background)
        return Seat(self, self.room(model), caller, ticket, counted=counted and not background)

    @staticmethod
    def _ticket(
        caller: Caller,
        sequences: int,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        priority: int = 0,
        background: bool = False,
    ) -> Ticket:
        return Ticket(
            caller.name,
            caller.weight,
            sequences,
            prompt_tokens,
            output_tokens,
            priority,
            caller.rank(priority),
            background,
        )

    def _check_open(self, sequences: int, *, draining: bool) -> None:
        if draining:
            raise UnavailableError(DRAINING, status=503, code="draining", retry_after=5)
        if sequences > max(1, self.max_queue):
            raise RequestError(
                f"'prompt' has {sequences} prompts; at most {self.max_queue} are taken.", "prompt"
            )

    def _check_limits(self, caller: Caller, prompt_tokens: int) -> None:
        refusal = caller.limits.refusal(time.monotonic(), prompt_tokens)
        if refusal is not None:
            raise _over_limit(caller, refusal)

    @staticmethod
    def _full(room: Room, caller: Caller, sequences: int) -> UnavailableError:
        """The refusal of a request, with the time in which what its caller has waiting will be served."""
        ahead = room.waiting[caller.name] + sequences
        rate = room.drain_rate.per_second(time.monotonic()) * room.share(caller.name, caller.weight)
        seconds = min(_LONGEST_RETRY_SECONDS, max(1, math.ceil(ahead / rate)))
        return UnavailableError(
            f"The server is busy: {room.total_waiting} requests are waiting. Retry in {seconds} s.",
            status=429,
            code="queue_full",
            retry_after=seconds,
        )

    def enter(self, seat: Seat) -> None:
        """Puts the seat's request into the queue, and lets in whose turn it is. Raises UnavailableError."""
        room, caller, ticket = seat.room, seat.caller, seat.ticket
        if seat.counted:
            self._check_limits(caller, ticket.prompt_tokens)
        displaced = room.displaced_by(ticket)
        if displaced is None:
            raise self._full(room, caller, ticket.sequences)
        for other in displaced:
            self._seats[other].displace(self._full(room, self._seats[other].caller, 0))
            self.leave(self._seats[other], served=False)
        if seat.counted:
            caller.limits.enter(ticket.prompt_tokens, time.monotonic())
        self.admitted += ticket.sequences
        self._idle.clear()
        self._seats[ticket] = seat
        room.arrive(ticket)
        self._let_in(room)

    def _let_in(self, room: Room) -> None:
        while (ticket := room.next()) is not None:
            self._seats[ticket].call()

    def finished(self, seat: Seat) -> None:
        """One of the request's sequences has ended: its place is free for the next."""
        seat.room.finished(seat.ticket)
        self._let_in(seat.room)

    def first_token(self, seat: Seat) -> None:
        """One of the request's sequences has its first token: the engine can be given the next prompt."""
        seat.room.first_token(seat.ticket)
        seat.room.drain_rate.left(time.monotonic())
        self._let_in(seat.room)

    def leave(self, seat: Seat, *, served: bool, complete: bool = False) -> None:
        """The request has ended; `served` where the engine worked on it. Nothing where it left before."""
        ticket = seat.ticket
        if self._seats.pop(ticket, None) is None:
            return
        seat.room.leave(ticket, complete)
        if seat.counted:
            if served:
                seat.caller.limits.leave(time.monotonic() - seat.entered)
            else:
                seat.caller.limits.take_back(ticket.prompt_tokens)
        self.admitted -= ticket.sequences
        self._look_whether_idle()
        self._let_in(seat.room)

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """A drain waits for the block's end: a request in it may yet ask another model."""
        self._kept_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._kept_open -= 1
            self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if not self.admitted and not self._kept_open:
            self._idle.set()

    async def idle(self, timeout: float) -> bool:
        """Waits until nothing is admitted; False where that took longer than `timeout` seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True


class Seat:
    """The place of one request, from the queue to its end; given back when the block ends."""

    def __init__(self, admission: Admission, room: Room, caller: Caller, ticket: Ticket, *, counted: bool):
        self._admission = admission
        self.counted = counted
        """Whether it counts for the caller's limits."""
        self.room = room
        self.caller = caller
        self.ticket = ticket
        self.entered = 0.0
        """When it was put into the queue, on time.monotonic's clock."""
        self.queue_seconds = 0.0
        """How long it waited for its turn."""
        self._turn: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Seat:
        self.entered = time.monotonic()
        self._turn = asyncio.get_running_loop().create_future()
        self._admission.enter(self)
        try:
            await self._turn
        except BaseException:
            self._admission.leave(self, served=False)
            raise
        self.queue_seconds = time.monotonic() - self.entered
        return self

    def call(self) -> None:
        """It is the request's turn."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def displace(self, why: UnavailableError) -> None:
        """The request waits no longer: the queue is full, and another goes before it."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_exception(why)

    def first_token(self) -> None:
        """One of the request's sequences has its first token."""
        self._admission.first_token(self)

    def generated(self, tokens: int) -> None:
        """So many tokens were computed."""
        self.ticket.generated += tokens
        self.caller.limits.generated(tokens)

    def finished(self) -> None:
        """One of the request's sequences has ended, though its client may have more to read."""
        self._admission.finished(self)

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._admission.leave(self, served=True, complete=kind is None)


def _over_limit(caller: Caller, refusal: Refusal) -> UnavailableError:
    seconds = max(1, math.ceil(refusal.retry_seconds))
    unit = refusal.limit.replace("_", " ").replace("concurrency", "requests at a time")
    return UnavailableError(
        f"The key '{caller.name}' has used its {refusal.allowed} {unit}. Retry in {seconds} s.",
        status=429,
        code="rate_limit_exceeded",
        retry_after=seconds,
    )
