"""Who waits and who is inside: a bounded queue before the engine, shared fairly between callers.

The engine is given what keeps it busy and no more; all else waits here, where whose turn it is can still be
decided. Knows no clock and no event loop, so the fairness of it can be tested in simulated time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headrace.gateway.fair_queue import FairQueue

_FIRST_GUESS_TOKENS = 256.0
"""How long a caller's answers are thought to be before one was seen."""
_SMOOTHING = 0.1
_FOR_BACKGROUND = 0.75
"""The part of the engine's places up to which background work fills gaps; the rest is free for who comes."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much the engine is given at a time."""

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
    background: bool = False
    """Runs only in the gaps that others leave; takes no place in the queue and is never displaced."""
    cost: float = 0.0
    """Tokens that it is expected to take; the room fills it in."""
    unstarted: int = 0
    unfinished: int = 0
    generated: int = 0
    inside: bool = False


class WaitingRoom:
    """Tickets that wait, and the count of those inside. Sequences, not tickets, are what is counted."""

    def __init__(self, max_queue: int, capacity: Capacity = UNBOUNDED):
        self.max_queue = max_queue
        self.capacity = capacity
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

        Those go who are last in the line of a caller that, for its weight, fills more of the queue; and
        less urgent ones of the same caller.
        """
        missing = 0 if ticket.background else self.total_waiting + ticket.sequences - self.max_queue
        gone: list[Ticket] = []
        if missing <= 0:
            return gone
        counts = dict(self.waiting)
        own = (counts.get(ticket.caller, 0) + ticket.sequences) / ticket.weight
        lines = {name: self._queue.from_last(name) for name in self._queue.callers()}
        while missing > 0:
            name = max(lines, key=lambda name: counts[name] / self._weights[name], default=None)
            if name is None:
                return None
            last = next(lines[name], None)
            heavier = counts[name] / self._weights[name] > own
            if last is not None and (last.priority > ticket.priority if name == ticket.caller else heavier):
                gone.append(last)
                counts[name] -= last.unstarted
                missing -= last.unstarted
            else:
                del lines[name]
        return gone

    def arrive(self, ticket: Ticket) -> None:
        """The ticket waits."""
        usual = self._usual_output.get(ticket.caller, _FIRST_GUESS_TOKENS) * ticket.sequences
        ticket.cost = ticket.prompt_tokens + max(1.0, min(usual, ticket.output_tokens))
        ticket.unstarted = ticket.unfinished = ticket.sequences
        self._weights[ticket.caller] = ticket.weight
        if ticket.background:
            self._background.add(ticket)
        else:
            self.waiting[ticket.caller] += ticket.sequences
            self._queue.add(ticket)

    def next(self) -> Ticket | None:
        """The ticket whose turn it is, now inside; None where the engine has enough or nobody waits."""
        if not self._has_room():
            return None
        ticket = self._queue.pop()
        if ticket is None and self.running < self.capacity.sequences * _FOR_BACKGROUND:
            ticket = self._background.pop()
        if ticket is not None:
            ticket.inside = True
            self.running += ticket.sequences
            self.starting += ticket.sequences
            self._starting_tokens += ticket.prompt_tokens
        return ticket

    def _has_room(self) -> bool:
        if self.running >= self.capacity.sequences:
            return False
        few = self.starting < self.capacity.starting
        return few or self._starting_tokens < self.capacity.starting_tokens

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
