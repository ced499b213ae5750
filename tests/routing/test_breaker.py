"""When a model that fails is left alone, and how it comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.breaker import Breaker


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(threshold=3, first_open=2, longest_open=10)
    for _ in range(3):
        breaker.failed(now)
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(threshold=3)
    for _ in range(5):
        breaker.failed(0)
        breaker.failed(0)
        breaker.succeeded(0)
    assert breaker.allows(0) and breaker.open_for(0) == 0
    breaker = opened()
    assert not breaker.allows(1.9)
    assert breaker.open_for(0.5) == 1.5


def test_many_failures_among_the_latest_open_it_but_old_ones_are_forgotten() -> None:
    breaker = Breaker(threshold=100, rate=0.5, window=10, window_seconds=60)
    for at in range(9):
        (breaker.failed if at % 2 else breaker.succeeded)(at)
    assert breaker.allows(9)
    for at in range(100, 105):
        (breaker.failed if at % 2 else breaker.succeeded)(at)
    assert breaker.allows(105)
    for at in range(105, 112):
        (breaker.failed if at % 2 else breaker.succeeded)(at)
    assert breaker.open


def test_one_trial_at_a_time_closes_it_again() -> None:
    breaker = opened()
    assert breaker.allows(2)
    breaker.begin_trial(2)
    assert not breaker.allows(2)
    breaker.succeeded(2.5)
    assert breaker.allows(2.5) and not breaker.open


def test_a_trial_that_fails_doubles_the_wait_up_to_a_bound() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(5):
        waits.append(breaker.open_for(now))
        now += breaker.open_for(now)
        breaker.begin_trial(now)
        breaker.failed(now)
    assert waits == [2, 4, 8, 10, 10]


def test_one_that_trips_again_soon_after_closing_stays_open_for_longer() -> None:
    breaker = opened()
    breaker.begin_trial(2)
    breaker.succeeded(2)
    for _ in range(3):
        breaker.failed(3)
    assert breaker.open_for(3) == 4
    breaker.begin_trial(7)
    breaker.succeeded(7)
    for _ in range(3):
        breaker.failed(100)
    assert breaker.open_for(100) == 2


def test_what_was_sent_before_it_opened_neither_closes_it_nor_opens_it_for_longer() -> None:
    breaker = opened()
    breaker.failed(1)
    breaker.succeeded(1)
    assert breaker.open_for(1) == 1


def test_a_trial_that_says_nothing_makes_room_for_another() -> None:
    breaker = opened()
    breaker.begin_trial(2)
    breaker.abandoned()
    assert breaker.allows(2)
    breaker.begin_trial(2)
    assert not breaker.allows(11.9) and breaker.allows(12)


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from(["send", "good", "bad", "gone"])), max_size=80))
def test_it_always_comes_back(steps: list[tuple[float, str]]) -> None:
    breaker, now = Breaker(threshold=2, longest_open=20), 0.0
    for pause, what in steps:
        now += pause
        wait = breaker.open_for(now)
        assert 0 <= wait <= 20
        assert breaker.allows(now) == (wait == 0)
        if what == "send":
            breaker.begin_trial(now)
        elif what == "gone":
            breaker.abandoned()
        else:
            (breaker.succeeded if what == "good" else breaker.failed)(now)
    now += breaker.open_for(now) + 1e-6
    assert breaker.allows(now)
    breaker.begin_trial(now)
    breaker.succeeded(now)
    assert not breaker.open
