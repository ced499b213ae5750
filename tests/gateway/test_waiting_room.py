"""The queue before the engine, in simulated time: whatever one caller does, the others get their share."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gateway.waiting_room import UNBOUNDED, Capacity, Ticket, WaitingRoom


class Simulation:
    """An engine of some places that serves a token a second for each; the room before it."""

    def __init__(self, room: WaitingRoom):
        self.room = room
        self.now = 0.0
        self.served: Counter[str] = Counter()
        """Tokens by caller."""
        self.refused: Counter[str] = Counter()
        self.order: list[Ticket] = []
        self._ends: list[tuple[float, int, Ticket]] = []

    def offer(self, ticket: Ticket) -> bool:
        displaced = self.room.displaced_by(ticket)
        if displaced is None:
            self.refused[ticket.caller] += 1
            return False
        for other in displaced:
            self.refused[other.caller] += 1
            self.room.leave(other, complete=False)
        self.room.arrive(ticket)
        self.let_in()
        return True

    def let_in(self) -> None:
        while (ticket := self.room.next()) is not None:
            self.order.append(ticket)
            for _ in range(ticket.sequences):
                self.room.first_token(ticket)
            heapq.heappush(self._ends, (self.now + ticket.output_tokens, len(self.order), ticket))

    def run(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            self.now, _, ticket = heapq.heappop(self._ends)
            ticket.generated = ticket.output_tokens * ticket.sequences
            self.served[ticket.caller] += ticket.generated
            self.room.leave(ticket, complete=True)
            self.let_in()
        self.now = until


def overload(
    rates: dict[str, int], weights: dict[str, float], tokens: dict[str, int], ticks: int
) -> Simulation:
    """Every caller offers `rate` requests of so many tokens each 10 seconds, for `ticks` times that."""
    simulation = Simulation(WaitingRoom(32, Capacity(sequences=8)))
    for tick in range(ticks):
        for caller, rate in rates.items():
            for _ in range(rate):
                simulation.offer(Ticket(caller, weights[caller], 1, 1, tokens[caller]))
        simulation.run((tick + 1) * 10.0)
    return simulation


@settings(max_examples=25)
@given(st.integers(4, 15), st.integers(5, 60), st.integers(5, 60))
def test_a_heavy_caller_takes_no_more_than_half_from_another_that_wants_as_much(
    rate: int, long: int, short: int
) -> None:
    tokens = {"heavy": long, "light": short}
    # The light one offers at least what the engine can do in all: 80 tokens each 10 seconds.
    offered = -(-80 // short) + 1
    simulation = overload({"heavy": 10 * rate, "light": offered}, {"heavy": 1, "light": 1}, tokens, 100)
    total = simulation.served.total()
    assert total >= 0.9 * 8 * 1000
    assert simulation.served["light"] >= 0.45 * total


@settings(max_examples=25)
@given(st.integers(20, 150))
def test_who_wants_less_than_its_share_gets_all_of_it(rate: int) -> None:
    simulation = overload(
        {"heavy": rate, "light": 2}, {"heavy": 1, "light": 1}, {"heavy": 20, "light": 10}, 100
    )
    assert simulation.refused["light"] == 0
    assert simulation.served["light"] >= 0.97 * 2 * 10 * 100
    assert simulation.refused["heavy"] > 0


@given(st.sampled_from([2.0, 3.0, 4.0]))
def test_shares_follow_the_weights(weight: float) -> None:
    simulation = overload({"a": 50, "b": 50}, {"a": weight, "b": 1}, {"a": 10, "b": 10}, 200)
    assert simulation.served["a"] / simulation.served["b"] == pytest.approx(weight, rel=0.1)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 6), st.integers(-2, 2), st.integers(1, 30)),
        max_size=80,
    )
)
def test_counts_are_right_whatever_comes(offers: list[tuple[str, int, int, int]]) -> None:
    simulation = Simulation(WaitingRoom(12, Capacity(sequences=4)))
    taken = 0
    for step, (caller, sequences, priority, tokens) in enumerate(offers):
        taken += simulation.offer(Ticket(caller, 1, sequences, tokens, tokens, priority))
        simulation.run(step * 3.0)
        room = simulation.room
        assert 0 <= room.total_waiting <= 12
        assert 0 <= room.running <= 4 + 5  # the last one let in may have more sequences than places were left
        assert room.starting == 0
    simulation.run(1e9)
    assert (simulation.room.running, simulation.room.total_waiting, simulation.room.held) == (0, 0, 0)
    assert len(simulation.order) + simulation.refused.total() == len(offers)


def filled(max_queue: int, *callers: str, priority: int = 0) -> tuple[WaitingRoom, list[Ticket]]:
    """A room whose one place is taken, with these waiting."""
    room = WaitingRoom(max_queue, Capacity(sequences=1))
    tickets = [Ticket("running", 1, 1, 1, 1), *(Ticket(name, 1, 1, 1, 1, priority) for name in callers)]
    for ticket in tickets:
        assert room.displaced_by(ticket) == []
        room.arrive(ticket)
        if room.next() is not None:
            room.first_token(ticket)
    return room, tickets[1:]


def test_a_full_queue_gives_up_the_newest_of_who_fills_it() -> None:
    room, waiting = filled(4, "heavy", "heavy", "light", "heavy")
    assert room.displaced_by(Ticket("heavy")) is None
    assert room.displaced_by(Ticket("new")) == [waiting[3]]
    assert room.displaced_by(Ticket("light")) == [waiting[3]]


def test_nobody_is_displaced_by_one_who_fills_as_much() -> None:
    room, _ = filled(4, "a", "a", "b", "b")
    assert room.displaced_by(Ticket("a")) is None
    assert room.displaced_by(Ticket("c", sequences=3)) is None


def test_within_a_caller_the_least_urgent_goes() -> None:
    room, waiting = filled(2, "a", "a", priority=5)
    assert room.displaced_by(Ticket("a", priority=5)) is None
    assert room.displaced_by(Ticket("a", priority=1)) == [waiting[1]]


def waiting_room(max_queue: int, *waiting: Ticket) -> WaitingRoom:
    room = WaitingRoom(max_queue, Capacity(sequences=1))
    for ticket in waiting:
        room.arrive(ticket)
    return room


def ranked(caller: str, rank: int, weight: float = 1.0) -> Ticket:
    return Ticket(caller, weight, priority=rank, rank=rank)


def test_the_newest_of_the_least_urgent_makes_room_and_never_an_equal_one() -> None:
    tickets = [ranked("a", rank) for rank in (5, 0, 9, 9, 5)]
    room = waiting_room(5, *tickets)
    assert room.displaced_by(ranked("a", 8)) == [tickets[3]]
    assert room.displaced_by(ranked("a", 9)) is None
    assert room.displaced_by(Ticket("a", sequences=4, priority=1, rank=1)) == [
        *(tickets[3], tickets[2], tickets[4], tickets[0])
    ]


def test_what_is_inside_is_never_displaced() -> None:
    first = ranked("a", 9)
    room = waiting_room(1, first)
    assert room.next() is first  # and it has no token yet
    assert room.displaced_by(ranked("a", -1)) is None and room.displaced_by(ranked("b", -1)) is None


def test_urgent_work_of_one_key_displaces_what_another_has_beyond_its_share() -> None:
    lazy = [ranked("lazy", 5) for _ in range(5)]
    room = waiting_room(8, *lazy, *(ranked("eager", 0) for _ in range(3)))
    for left in (4, 3):  # each one's share is four
        displaced = room.displaced_by(ranked("eager", 0))
        assert displaced == ([lazy[4]] if left == 4 else None)
        if displaced:
            room.leave(displaced[0], complete=False)
            room.arrive(ranked("eager", 0))
    assert room.waiting == {"lazy": 4, "eager": 4}


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-3, 3), st.integers(1, 3)), min_size=1, max_size=120
    )
)
def test_priority_takes_from_no_key_what_is_its_share(offers: list[tuple[str, int, int]]) -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 0.5}
    room = WaitingRoom(12, Capacity(sequences=1))
    for caller, priority, sequences in offers:
        ticket = Ticket(caller, weights[caller], sequences, priority=priority, rank=priority)
        before = dict(room.waiting)
        displaced = room.displaced_by(ticket)
        for other in displaced or ():
            assert not other.inside
            room.leave(other, complete=False)
            if other.caller == caller:
                assert other.priority > priority
                continue
            contenders = {*before, caller}
            share = 12 * weights[other.caller] / sum(weights[name] for name in contenders)
            own = (before.get(caller, 0) + sequences) / weights[caller]
            heavier = before[other.caller] / weights[other.caller] > own
            assert heavier or (other.rank > priority and room.waiting[other.caller] >= share)
        if displaced is not None:
            room.arrive(ticket)
        assert room.total_waiting <= 12


def test_within_a_caller_priority_goes_before_arrival() -> None:
    room = WaitingRoom(10, Capacity(sequences=1))
    tickets = [Ticket("a", priority=priority) for priority in (3, 1, 2, 1)]
    for ticket in tickets:
        room.arrive(ticket)
    order = []
    while (ticket := room.next()) is not None:
        order.append(ticket.priority)
        room.leave(ticket, complete=True)
    assert order == [1, 1, 2, 3]


def test_long_prompts_are_let_in_a_few_at_a_time() -> None:
    room = WaitingRoom(100, Capacity(sequences=50, starting=2, starting_tokens=1000))
    for _ in range(10):
        room.arrive(Ticket("a", prompt_tokens=900))
    inside = list(iter(room.next, None))
    assert len(inside) == 2
    room.first_token(inside[0])
    assert room.next() is not None and room.next() is None
    short = WaitingRoom(100, Capacity(sequences=50, starting=2, starting_tokens=1000))
    for _ in range(60):
        short.arrive(Ticket("a", prompt_tokens=10))
    assert sum(1 for _ in iter(short.next, None)) == 50


def test_background_work_fills_gaps_only() -> None:
    room = WaitingRoom(1, Capacity(sequences=4))
    for _ in range(5):
        background = Ticket("batch", background=True)
        assert room.displaced_by(background) == []
        room.arrive(background)
    assert sum(1 for _ in iter(room.next, None)) == 3  # a quarter stays free
    online = Ticket("a")
    room.arrive(online)
    assert room.next() is online
    room.first_token(online)
    room.leave(online, complete=True)
    assert room.next() is None


def test_a_place_is_free_when_a_sequence_ends_even_if_its_client_still_reads() -> None:
    room = WaitingRoom(10, Capacity(sequences=2))
    first, second = Ticket("a", sequences=2), Ticket("a")
    room.arrive(first)
    room.arrive(second)
    assert room.next() is first and room.next() is None
    room.finished(first)
    assert room.next() is second
    room.leave(first, complete=True)
    assert room.running == 1


def test_without_a_capacity_nothing_is_held_back() -> None:
    room = WaitingRoom(500, UNBOUNDED)
    for _ in range(300):
        room.arrive(Ticket("a", prompt_tokens=10**6))
    assert sum(1 for _ in iter(room.next, None)) == 300


def test_each_engine_has_room_for_as_many():
    room = WaitingRoom(100, Capacity(3, starting=2, starting_tokens=10))
    for _ in range(20):
        room.arrive(Ticket("caller", prompt_tokens=10))

    def inside() -> int:
        while room.next() is not None:
            pass
        return room.running

    assert inside() == 2
    room.engines = lambda: 2
    assert inside() == 4
    room.engines = lambda: 0  # one is coming: what is let in waits for it
    assert inside() == 4
