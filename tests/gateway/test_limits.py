"""What one key may use, in simulated time: a minute's worth at once, then as fast as it fills up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.keys import KeyLimits
from headrace.gateway.limits import Limits, duration


def test_requests_are_counted_by_the_minute() -> None:
    limits = Limits(KeyLimits(requests_per_minute=2), now=0)
    for _ in range(2):
        assert limits.refusal(0) is None
        limits.enter(10, 0)
        limits.leave(1)
    refusal = limits.refusal(0)
    assert refusal is not None
    assert (refusal.limit, refusal.retry_seconds) == ("requests_per_minute", 30)
    assert limits.refusal(29.9) is not None
    assert limits.refusal(30.1) is None


def test_tokens_are_counted_at_admission_and_as_they_are_generated() -> None:
    limits = Limits(KeyLimits(tokens_per_minute=600), now=0)
    limits.enter(500, 0)
    assert limits.refusal(0, 100) is None
    limits.generated(200)
    refusal = limits.refusal(0, 100)
    assert refusal is not None and refusal.retry_seconds == pytest.approx(20)
    assert limits.refusal(21, 100) is None


def test_a_prompt_above_the_rate_runs_once_the_bucket_is_full() -> None:
    limits = Limits(KeyLimits(tokens_per_minute=100), now=0)
    assert limits.refusal(0, 5000) is None
    limits.enter(5000, 0)
    refusal = limits.refusal(0, 1)
    assert refusal is not None and refusal.retry_seconds > 2900


def test_only_so_many_requests_at_a_time() -> None:
    limits = Limits(KeyLimits(concurrency=1), now=0)
    limits.enter(1, 0)
    refusal = limits.refusal(0)
    assert refusal is not None and refusal.limit == "concurrency"
    limits.leave(2.0)
    assert limits.refusal(0) is None


def test_what_is_turned_away_after_all_costs_nothing() -> None:
    limits = Limits(KeyLimits(requests_per_minute=1, tokens_per_minute=10, concurrency=1), now=0)
    limits.enter(10, 0)
    limits.take_back(10)
    assert limits.refusal(0, 10) is None


def test_new_limits_keep_what_was_used() -> None:
    limits = Limits(KeyLimits(requests_per_minute=10), now=0)
    for _ in range(10):
        limits.enter(0, 0)
    limits.set(KeyLimits(requests_per_minute=12), 0)
    assert dict(limits.headers(0))[b"x-ratelimit-remaining-requests"] == b"2"
    limits.set(KeyLimits(), 0)
    assert limits.refusal(0) is None and limits.headers(0) == []


def test_headers_are_openais() -> None:
    limits = Limits(KeyLimits(requests_per_minute=60, tokens_per_minute=1000), now=0)
    limits.enter(250, 0)
    assert dict(limits.headers(0)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"750",
        b"x-ratelimit-reset-tokens": b"15s",
    }


@given(st.floats(0, 10_000))
def test_a_duration_is_never_shorter_than_it_is(seconds: float) -> None:
    text = duration(seconds)
    minutes, _, rest = text.rpartition("m") if "ms" not in text else ("", "", text)
    told = int(rest[:-2]) / 1000 if rest.endswith("ms") else int(rest.removesuffix("s"))
    told += 60 * int(minutes or 0)
    assert seconds <= told + 1e-9 <= math.ceil(seconds) + 1
