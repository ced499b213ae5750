"""Handoffs: a prompt's blocks travel from the replica that computes it to the one that answers."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count

from headrace.engine.transfers import Progress, Reservation
from headrace.simulate.replica import SimulatedReplica


class Handoff:
    """One prompt's way. The engines' own loans say what may be sent, and where it is to be written."""

    def __init__(self, handoff_id: str, request_id: str, source: SimulatedReplica, target: SimulatedReplica):
        self.id = handoff_id
        self.request_id = request_id
        self.source = source
        self.target = target
        self.sent = 0
        """Tokens that are on their way or there, those that the target had from the beginning included."""
        self._wanted: int | None = None
        """Tokens that the target waits for; None before it has blocks for them."""
        self._computed = 0
        self._complete = False
        self.ended = False
        """Whether no more of it is sent, and no block is on loan for it."""

    def reserved(self, reservation: Reservation) -> None:
        """The target has room."""
        self.sent, self._wanted = reservation.start, reservation.end
        if reservation.start >= reservation.end:
            self.end()

    def advance(self, progress: Progress) -> None:
        """The source has computed more."""
        self._computed, self._complete = progress.tokens, progress.complete

    def take(self) -> int:
        """How many tokens can be sent now; they count as sent."""
        if self._wanted is None or self.ended:
            return 0
        tokens = max(0, self._computed - self.sent)
        self.sent += tokens
        return tokens

    def arrived(self, tokens: int) -> None:
        """All up to so many tokens are in the target's blocks."""
        if self.ended or self._wanted is None:
            return
        self.target.engine.transfers.imported(self.request_id, min(tokens, self._wanted))
        if self._complete and tokens == self._computed:
            self.end()

    def end(self) -> None:
        """Nothing more is sent: all is there, or one side needs its blocks. The target computes the rest."""
        if not self.ended:
            self.ended = True
            self.source.engine.cancel(self.id)
            self.source.engine.transfers.end_export(self.id)
            self.target.engine.transfers.end_import(self.request_id)


class Links:
    """What is on its way: each replica sends one thing after another, at the same speed."""

    def __init__(self, token_seconds: float):
        self._token_seconds = token_seconds
        self._free_at: dict[str, float] = {}
        self._due: list[tuple[float, int, Handoff, int]] = []
        self._serials = count()

    @property
    def next_arrival(self) -> float:
        """Infinity where nothing is on its way."""
        return self._due[0][0] if self._due else math.inf

    def send(self, handoff: Handoff, now: float) -> None:
        """What can be sent of it, if anything."""
        if not (tokens := handoff.take()):
            return
        source = handoff.source.name
        arrival = max(now, self._free_at.get(source, 0.0)) + tokens * self._token_seconds
        self._free_at[source] = arrival
        heappush(self._due, (arrival, next(self._serials), handoff, handoff.sent))

    def arrive(self) -> Handoff:
        """What is due next has arrived."""
        _, _, handoff, tokens = heappop(self._due)
        handoff.arrived(tokens)
        return handoff
