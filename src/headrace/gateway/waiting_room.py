"""Who waits and who is inside: a bounded queue before the engine, shared fairly between callers.

The engine is given what keeps it busy and no more; all else waits here, where whose turn it is can still be
decided. Knows no clock and no event loop, so the fairness of it can be tested in simulated time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headrace.gateway.fair_queue import FairQueue

_FIRST_GUESS_TOKENS = 256.0
"""How long a caller's answers are thought to be before one was seen."""
_SMOOTHING = 0.1
_FOR_BACKGROUND = 0.75
"""The part of the engine's places up to which background work fills gaps; the rest is free for who comes."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much an engine is given at a time."""

    sequences: int
    """That are inside, running or about to."""
    starting: int = 4
    """Sequences that may be without a first token, however long their prompts."""
    starting_tokens: int = 2048
    """Tokens of prompts up to which more than `starting` may be."""

    @staticmethod
    def of_engine(max_running: int, max_batch_tokens: int) -> Capacity:
        """A few more than run, so that a place is never empty, and prompts for the next steps."""
        running = min(max_running, max_batch_tokens)
        return Capacity(running + max(2, running // 8), starting_tokens=8 * max_batch_tokens)


UNBOUNDED = Capacity(2**31, 2**31)
"""Nothing is held back: the engine's own queue is where requests wait."""


@dataclass(eq=False, slots=True)
class Ticket:
    """One request, from its arrival to its end."""

    caller: str
    weight: float = 1.0
    sequences: int = 1
    prompt_tokens: int = 0
    """Of all its prompts."""
    output_tokens: int = 0
    """The most that its sequences may generate together."""
    priority: int = 0
    """Orders one caller's requests, lower first."""
    rank: int = 0
    """The same, as far as it counts against other callers' requests when the queue is full."""
    background: bool = False
    """Runs only in the gaps that others leave; takes no place in the queue and is never displaced."""
    cost: float = 0.0
    """Tokens that it is expected to take; the room fills it in."""
    unstarted: int = 0
    unfinished: int = 0
    generated: int = 0
    inside: bool = False
    arrival: int = 0
    """Counts the tickets that came; the room fills it in."""


class WaitingRoom:
    """Tickets that wait, and the count of those inside. Sequences, not tickets, are what is counted."""

    def __init__(self, max_queue: int, capacity: Capacity = UNBOUNDED):
        self.max_queue = max_queue
        self.capacity = capacity
        """Of each engine."""
        self.engines: Callable[[], int] = lambda: 1
        """How many there are now."""
        self.running = 0
        """Inside and not finished."""
        self.starting = 0
        """Inside without a first token."""
        self.waiting: Counter[str] = Counter()
        """By caller: without a first token, inside or not; background apart."""
        self._starting_tokens = 0
        self._queue: FairQueue[Ticket] = FairQueue()
        self._background: FairQueue[Ticket] = FairQueue()
        self._weights: dict[str, float] = {}
        self._usual_output: dict[str, float] = {}
        self._arrivals = 0

    @property
    def total_waiting(self) -> int:
        """Sequences without a first token."""
        return self.waiting.total()

    @property
    def held(self) -> int:
        """Requests that are not inside."""
        return len(self._queue) + len(self._background)

    def share(self, caller: str, weight: float) -> float:
        """The part of the server that the caller gets while those wait who wait now."""
        others = sum(self._weights[name] for name, count in self.waiting.items() if count and name != caller)
        return weight / (weight + others)

    def displaced_by(self, ticket: Ticket) -> list[Ticket] | None:
        """Who must go so that there is a place for the ticket; None where it is the one to go.

        The newest of the least urgent go first: of other callers what ranks behind the ticket, down to their
        share of the queue; then, whatever its priority, the last in the line of a caller that fills more of
        the queue for its weight; then less urgent ones of the same caller. Never one that is inside.
        """
        missing = 0 if ticket.background else self.total_waiting + ticket.sequences - self.max_queue
        gone: list[Ticket] = []
        if missing <= 0:
            return gone
        shedding = _Shedding(ticket, self.max_queue, self.waiting, self._weights)
        for name in self._queue.callers():
            shedding.add(name, self._queue.from_last(name))
        while missing > 0:
            if (victim := shedding.next()) is None:
                return None
            gone.append(victim)
            missing -= victim.unstarted
        return gone

    def arrive(self, ticket: Ticket) -> None:
        """The ticket waits."""
        usual = self._usual_output.get(ticket.caller, _FIRST_GUESS_TOKENS) * ticket.sequences
        ticket.cost = ticket.prompt_tokens + max(1.0, min(usual, ticket.output_tokens))
        ticket.unstarted = ticket.unfinished = ticket.sequences
        self._weights[ticket.caller] = ticket.weight
        self._arrivals += 1
        ticket.arrival = self._arrivals
        if ticket.background:
            self._background.add(ticket)
        else:
            self.waiting[ticket.caller] += ticket.sequences
            self._queue.add(ticket)

    def next(self) -> Ticket | None:
        """The ticket whose turn it is, now inside; None where the engine has enough or nobody waits."""
        if not self.has_room:
            return None
        ticket = self._queue.pop()
        if ticket is None and self.running < self.engines() * self.capacity.sequences * _FOR_BACKGROUND:
            ticket = self._background.pop()
        if ticket is not None:
            ticket.inside = True
            self.running += ticket.sequences
            self.starting += ticket.sequences
            self._starting_tokens += ticket.prompt_tokens
        return ticket

    @property
    def has_room(self) -> bool:
        """Whether the engines can be given more."""
        engines = max(1, self.engines())
        if self.running >= engines * self.capacity.sequences:
            return False
        few = self.starting < engines * self.capacity.starting
        return few or self._starting_tokens < engines * self.capacity.starting_tokens

    def first_token(self, ticket: Ticket) -> None:
        """One of the ticket's sequences has its first token."""
        self._started(ticket, 1)

    def _started(self, ticket: Ticket, sequences: int) -> None:
        sequences = min(sequences, ticket.unstarted)
        if not sequences:
            return
        ticket.unstarted -= sequences
        if not ticket.background:
            self.waiting[ticket.caller] -= sequences
            if not self.waiting[ticket.caller]:
                del self.waiting[ticket.caller]
        if ticket.inside:
            self.starting -= sequences
            if not ticket.unstarted:
                self._starting_tokens -= ticket.prompt_tokens

    def finished(self, ticket: Ticket, sequences: int = 1) -> None:
        """So many of the ticket's sequences have ended; their places are free."""
        sequences = min(sequences, ticket.unfinished)
        ticket.unfinished -= sequences
        self.running -= sequences

    def leave(self, ticket: Ticket, complete: bool) -> None:
        """The request has ended, or goes away while it waits. `complete`: its answer was not cut short."""
        queue = self._background if ticket.background else self._queue
        if not ticket.inside:
            queue.remove(ticket)
            self._started(ticket, ticket.unstarted)
            return
        self._started(ticket, ticket.unstarted)
        self.finished(ticket, ticket.unfinished)
        if complete:
            usual = self._usual_output.get(ticket.caller, _FIRST_GUESS_TOKENS)
            usual += _SMOOTHING * (ticket.generated / ticket.sequences - usual)
            self._usual_output[ticket.caller] = usual
        queue.settle(ticket, ticket.prompt_tokens + ticket.generated)


class _Shedding:
    """The order in which waiting tickets make room for one that came."""

    def __init__(
        self, ticket: Ticket, max_queue: int, waiting: Mapping[str, int], weights: Mapping[str, float]
    ) -> None:
        self._ticket = ticket
        self._counts = dict(waiting)
        self._weights = {name: weights[name] for name in waiting} | {ticket.caller: ticket.weight}
        self._place = max_queue / sum(self._weights.values())
        """Of the queue, for a weight of one."""
        self._own = (self._counts.get(ticket.caller, 0) + ticket.sequences) / ticket.weight
        self._lines: dict[str, Iterator[Ticket]] = {}
        self._last: dict[str, Ticket] = {}
        """By caller: who of its tickets would go next."""

    def add(self, caller: str, line: Iterator[Ticket]) -> None:
        """The caller's tickets that wait, the last in line first."""
        self._lines[caller] = line
        self._advance(caller)

    def next(self) -> Ticket | None:
        """Who goes next; None where nobody has to."""
        victim = self._less_urgent() or self._heavier() or self._own_less_urgent()
        if victim is not None:
            self._counts[victim.caller] -= victim.unstarted
            self._advance(victim.caller)
        return victim

    def _advance(self, caller: str) -> None:
        if (last := next(self._lines[caller], None)) is not None:
            self._last[caller] = last
        else:
            self._last.pop(caller, None)

    def _less_urgent(self) -> Ticket | None:
        ticket = self._ticket
        found = (
            last
            for name, last in self._last.items()
            if name != ticket.caller
            and last.rank > ticket.rank
            and self._counts[name] - last.unstarted >= self._place * self._weights[name]
        )
        return max(found, key=lambda last: (last.rank, last.arrival), default=None)

    def _heavier(self) -> Ticket | None:
        def filled(name: str) -> float:
            return self._counts[name] / self._weights[name]

        heaviest = max(self._last.keys() - {self._ticket.caller}, key=filled, default=None)
        return self._last[heaviest] if heaviest is not None and filled(heaviest) > self._own else None

    def _own_less_urgent(self) -> Ticket | None:
        last = self._last.get(self._ticket.caller)
        return last if last is not None and last.priority > self._ticket.priority else None
