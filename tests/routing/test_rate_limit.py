"""How much is sent to a remote, and how long is waited where it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.rate_limit import RateLimit


def test_without_limits_nothing_waits() -> None:
    limit = RateLimit(0)
    for _ in range(1000):
        limit.take(0, 10**6)
    assert limit.wait(0, 10**6) == 0


def test_requests_and_tokens_are_limited_by_the_minute() -> None:
    limit = RateLimit(0, requests_per_minute=2, tokens_per_minute=600)
    limit.take(0, 100)
    limit.take(0, 100)
    assert limit.wait(0, 100) == pytest.approx(30)
    assert limit.wait(40, 600) == pytest.approx(0)
    limit.take(40, 600)
    assert limit.wait(70, 600) == pytest.approx(30)


def test_what_was_taken_and_not_used_comes_back() -> None:
    limit = RateLimit(0, tokens_per_minute=600)
    limit.take(0, 600)
    assert limit.wait(0, 300) == pytest.approx(30)
    limit.settle(0, taken=600, used=200)
    assert limit.wait(0, 300) == 0


def test_only_so_many_are_in_flight() -> None:
    limit = RateLimit(0, concurrency=1)
    limit.take(0, 5)
    assert limit.wait(0, 5) > 0
    limit.settle(0, 5, 5)
    assert limit.wait(0, 5) == 0


def test_the_remote_is_left_alone_for_as_long_as_it_says() -> None:
    limit = RateLimit(0)
    limit.refused(10, 7.5)
    limit.refused(11, 1)
    assert limit.wait(12, 1) == 5.5
    assert limit.wait(17.5, 1) == 0


def test_where_it_does_not_say_the_wait_doubles_until_it_accepts() -> None:
    limit, now, waits = RateLimit(0), 0.0, []
    for _ in range(8):
        limit.refused(now, None)
        waits.append(limit.wait(now, 1))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    limit.accepted()
    limit.refused(now, None)
    assert limit.wait(now, 1) == 1


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 40), st.integers(0, 60)), max_size=60),
)
def test_whoever_waits_as_told_keeps_the_limits(rate: int, steps: list[tuple[float, int, int]]) -> None:
    limit, now, used = RateLimit(0, requests_per_minute=rate, tokens_per_minute=100), 0.0, 0
    for sent, (pause, taken, spent) in enumerate(steps):
        now += pause
        now += limit.wait(now, taken) + 1e-6
        assert limit.wait(now, taken) == 0
        limit.take(now, taken)
        limit.settle(now, taken, spent)
        assert sent + 1 <= rate * (1 + now / 60) + 1e-3
        used += spent
        assert used - spent <= 100 * (1 + now / 60) + 1e-3
