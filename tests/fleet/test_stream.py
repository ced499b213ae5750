"""A stream gives a request's events to its one consumer, whatever comes of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace.backends.sampling import SamplingParams
from headrace.errors import WorkerDiedError
from headrace.fleet import Stream
from headrace.worker.messages import Submit, TokenEvent


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def event(text: str, finish_reason: str | None = None) -> TokenEvent:
    return TokenEvent(id="a", text=text, token_ids=[1], finish_reason=finish_reason)


class Cancelled(list[str]):
    def stream(self) -> Stream:
        return Stream(Submit("a", [1], 9, SamplingParams()), self.append)


async def texts(stream: Stream) -> list[str]:
    return [event.text async for event in stream]


def test_events_come_in_order_up_to_the_finish_reason() -> None:
    async def test() -> None:
        stream = Cancelled().stream()
        reading = asyncio.create_task(texts(stream))
        stream.push(event("one"))
        await asyncio.sleep(0)
        stream.push(event("two"))
        stream.push(event("three", "stop"))
        assert await reading == ["one", "two", "three"]

    run(test())


def test_events_before_an_error_are_delivered_before_it() -> None:
    async def test() -> None:
        stream = Cancelled().stream()
        stream.push(event("one"))
        stream.end(WorkerDiedError("gone"))
        assert (await anext(stream)).text == "one"
        with pytest.raises(WorkerDiedError):
            await anext(stream)

    run(test())


def test_a_waiting_consumer_learns_of_an_error_at_once() -> None:
    async def test() -> None:
        stream = Cancelled().stream()
        reading = asyncio.create_task(texts(stream))
        await asyncio.sleep(0)
        stream.end(WorkerDiedError("gone"))
        with pytest.raises(WorkerDiedError):
            await reading

    run(test())


def test_closing_cancels_a_request_that_runs_and_none_that_has_ended() -> None:
    async def test() -> None:
        cancelled = Cancelled()
        await cancelled.stream().aclose()
        assert cancelled == ["a"]
        stream = cancelled.stream()
        stream.push(event("all", "length"))
        await stream.aclose()
        assert cancelled == ["a"]

    run(test())


def test_a_consumer_that_gave_up_waiting_does_not_hinder_events() -> None:
    async def test() -> None:
        stream = Cancelled().stream()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(stream), 0.01)
        stream.push(event("late", "stop"))
        assert await texts(stream) == ["late"]

    run(test())
