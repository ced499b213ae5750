"""Requests that wait for their turn, are turned away, or end too late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from headrace.gateway.admission import Admission, DrainRate, Seat
from headrace.gateway.callers import Caller
from headrace.gateway.deadline import Deadline
from headrace.gateway.errors import UnavailableError
from headrace.gateway.keys import KeyLimits
from headrace.gateway.waiting_room import Capacity


def caller(name: str, **limits: object) -> Caller:
    return Caller(name, KeyLimits(**limits))  # type: ignore[arg-type]


async def hold(seat: Seat, until: asyncio.Event, order: list[str]) -> None:
    async with seat:
        order.append(seat.caller.name)
        seat.first_token()
        await until.wait()
        seat.finished()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_waits_is_let_in_when_a_place_is_free() -> None:
    async def scene() -> None:
        admission = Admission(10, Capacity(sequences=1))
        order: list[str] = []
        ends = [asyncio.Event() for _ in range(3)]
        callers = [caller("heavy"), caller("heavy"), caller("light")]
        tasks = [
            asyncio.create_task(hold(admission.admit(who, "m"), end, order))
            for who, end in zip(callers, ends, strict=True)
        ]
        await settle()
        assert order == ["heavy"] and admission.waiting == 2 and admission.admitted == 3
        for end in ends:
            end.set()
        await asyncio.gather(*tasks)
        assert order == ["heavy", "light", "heavy"]
        assert (admission.waiting, admission.admitted) == (0, 0)
        assert await admission.idle(0.1)

    asyncio.run(scene())


def test_urgent_work_takes_the_place_of_the_newest_of_the_least_urgent() -> None:
    async def scene() -> None:
        admission, end = Admission(3, Capacity(sequences=1)), asyncio.Event()
        who, order = caller("all"), []
        waiting = [admission.admit(who, "m", priority=priority) for priority in (9, 9, 0, 9)]
        tasks = [asyncio.create_task(hold(seat, end, order)) for seat in waiting]
        await settle()  # the first one is inside: it has begun, whatever its priority
        with pytest.raises(UnavailableError):
            admission.check(who, "m", priority=9)
        admission.check(who, "m", priority=1)
        tasks.append(asyncio.create_task(hold(admission.admit(who, "m", priority=1), end, order)))
        await settle()
        with pytest.raises(UnavailableError) as refused:
            await tasks[3]
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
        end.set()
        await asyncio.gather(*tasks[:3], tasks[4])
        assert admission.admitted == 0

    asyncio.run(scene())


def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    async def scene() -> None:
        admission, end = Admission(10, Capacity(sequences=1)), asyncio.Event()
        order: list[str] = []
        who = caller("a", concurrency=3)
        first = asyncio.create_task(hold(admission.admit(who, "m"), end, order))
        second = asyncio.create_task(hold(admission.admit(who, "m"), end, order))
        await settle()
        second.cancel()
        await settle()
        assert (admission.waiting, admission.admitted, who.limits.active) == (0, 1, 1)
        end.set()
        await first
        assert admission.room("m").running == 0

    asyncio.run(scene())


def test_a_full_queue_turns_away_who_fills_it_for_one_who_does_not() -> None:
    async def scene() -> None:
        admission, end = Admission(2, Capacity(sequences=1)), asyncio.Event()
        order: list[str] = []
        heavy = caller("heavy")
        tasks = [asyncio.create_task(hold(admission.admit(heavy, "m"), end, order)) for _ in range(3)]
        await settle()
        with pytest.raises(UnavailableError) as refused:
            admission.check(heavy, "m")
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
        assert refused.value.retry_after and 1 <= refused.value.retry_after <= 60
        light = asyncio.create_task(hold(admission.admit(caller("light"), "m"), end, order))
        await settle()
        assert isinstance(tasks[2].exception(), UnavailableError)
        end.set()
        await asyncio.gather(light, *tasks[:2])
        assert order == ["heavy", "light", "heavy"]

    asyncio.run(scene())


def test_a_limit_of_the_key_is_told_with_the_time_to_wait() -> None:
    async def scene() -> None:
        admission = Admission(10)
        who = caller("bob", requests_per_minute=1)
        async with admission.admit(who, "m", prompt_tokens=5):
            pass
        refused = pytest.raises(UnavailableError, match="'bob' has used its 1 requests per minute")
        with refused as at_check:
            admission.check(who, "m")
        with refused as at_entry:
            await admission.admit(who, "m").__aenter__()
        for error in (at_check, at_entry):
            assert (error.value.code, error.value.retry_after) == ("rate_limit_exceeded", 60)

    asyncio.run(scene())


def test_a_drain_rate_is_measured_over_the_last_seconds() -> None:
    rate = DrainRate(window=10)
    for step in range(100):
        rate.left(step * 0.5)
    assert rate.per_second(50) == pytest.approx(2, rel=0.1)
    assert rate.per_second(80) == pytest.approx(1 / 30.5, rel=0.01)


def deadline_of(seconds: float, work: Callable[[], object]) -> None:
    async def scene() -> None:
        async with Deadline(seconds):
            await work()  # type: ignore[misc]

    asyncio.run(scene())


def test_a_deadline_ends_what_takes_longer() -> None:
    began = time.monotonic()
    with pytest.raises(UnavailableError) as error:
        deadline_of(0.05, lambda: asyncio.sleep(10))
    assert (error.value.status, error.value.code) == (504, "timeout")
    assert time.monotonic() - began < 2
    deadline_of(10, lambda: asyncio.sleep(0))


def test_of_nested_blocks_the_inner_one_tells() -> None:
    async def scene() -> None:
        told = []
        deadline = Deadline(0.02)
        with pytest.raises(ZeroDivisionError):
            async with deadline:
                try:
                    async with deadline:
                        await asyncio.sleep(10)
                except UnavailableError as error:
                    told.append(error.status)
                    await asyncio.sleep(0.05)  # the last words are not cut short
                raise ZeroDivisionError
        assert told == [504]

    asyncio.run(scene())


def test_another_cancellation_is_not_taken_for_the_deadline() -> None:
    async def scene() -> None:
        async def work() -> None:
            async with Deadline(10):
                await asyncio.sleep(10)

        task = asyncio.create_task(work())
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())


def test_a_queue_before_one_model_holds_up_no_other() -> None:
    async def run() -> None:
        admission = Admission(max_queue=1, capacity=Capacity(1))
        end, order = asyncio.Event(), list[str]()
        who = caller("a")
        tasks = []
        for _ in range(2):
            tasks.append(asyncio.create_task(hold(admission.admit(who, "busy"), end, order)))
            await settle()
        with pytest.raises(UnavailableError):
            admission.check(who, "busy")
        admission.check(who, "idle")
        tasks.append(asyncio.create_task(hold(admission.admit(who, "idle"), end, order)))
        await settle()
        assert admission.room("idle").running == 1 and admission.room("busy").running == 1
        end.set()
        await asyncio.gather(*tasks)
        assert admission.waiting == 0 and admission.admitted == 0

    asyncio.run(run())
