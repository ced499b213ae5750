"""A token bucket, in simulated time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.bucket import Bucket


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 100), st.integers(1, 500)), max_size=50))
def test_no_minute_sees_more_than_twice_the_rate(rate: int, tries: list[tuple[float, int]]) -> None:
    bucket, now, spent = Bucket(rate, 0.0), 0.0, 0
    for pause, amount in tries:
        now += pause
        if amount <= rate and bucket.wait(amount, now) == 0:
            bucket.spend(amount)
            spent += amount
        assert spent <= rate + rate * now / 60 + 1e-6


@given(st.integers(1, 10_000), st.integers(0, 30_000), st.integers(1, 20_000))
def test_the_wait_that_is_told_is_the_wait_there_is(rate: int, spent: int, amount: int) -> None:
    bucket = Bucket(rate, 0.0)
    bucket.spend(spent)
    wait = bucket.wait(amount, 0.0)
    if wait > 0:
        assert bucket.wait(amount, wait * 0.99) > 0
    assert bucket.wait(amount, wait + 1e-6) == pytest.approx(0, abs=1e-6)
