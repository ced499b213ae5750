"""Prompts computed by one worker and answered by another: every stream as by one alone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from fleet.joining import PATIENCE
from headrace.backends.sampling import SamplingParams
from headrace.fleet import Fleet, FleetShape, RestartPolicy, State
from headrace.worker.handoff.outbox import KEEP_SECONDS
from headrace.worker.messages import Constraint, Submit, TokenEvent
from headrace.worker.settings import WorkerSettings

QUICK = RestartPolicy(first_delay=0.05)
CONTEXT = 1500
LENGTHS = (1, 255, 256, 300, 511, 512, 513, 1000, 1337)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=11, repetition_penalty=1.1)


def prompt(length: int, first: int = 3) -> list[int]:
    return [(7 * i * i + first) % 250 for i in range(length)]


def request(name: str, length: int, **fields: object) -> Submit:
    asked = Submit(id=name, prompt=prompt(length, length), max_tokens=20, sampling=SAMPLED, top_logprobs=1)
    return msgspec.structs.replace(asked, **fields)


def told(events: list[TokenEvent]) -> list[tuple[object, ...]]:
    return [(e.text, e.token_ids, e.logprobs, e.finish_reason) for e in events]


def on_a_fleet(model: Path, shape: FleetShape, test: Callable[[Fleet], Awaitable[None]]) -> None:
    settings = WorkerSettings(
        model=str(model), threads=1, max_batch_tokens=64, cache_tokens=6 * CONTEXT, context_length=CONTEXT
    )

    async def body() -> None:
        async with Fleet(settings, shape, QUICK) as fleet:
            await asyncio.wait_for(test(fleet), 60 + KEEP_SECONDS)

    asyncio.run(body())


async def answers(fleet: Fleet, requests: list[Submit]) -> list[list[tuple[object, ...]]]:
    async def answer(asked: Submit) -> list[tuple[object, ...]]:
        return told([event async for event in fleet.submit(asked)])

    return list(await asyncio.gather(*map(answer, requests)))


async def idle(fleet: Fleet) -> None:
    """Until no worker holds anything, which must be sooner than prompts are given up that nobody fetches."""
    deadline = time.monotonic() + KEEP_SECONDS / 2
    while any(s.blocks_used or s.running or s.waiting for s in (await fleet.stats(PATIENCE)).values()):
        assert time.monotonic() < deadline, await fleet.stats(PATIENCE)
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def requests() -> list[Submit]:
    plain = [request(f"{length}", length) for length in LENGTHS]
    odd = [
        request("salted", 700, salt="s"),
        request("stops", 700, stop=["e", "th"], min_tokens=5),
        request("constrained", 600, constraint=Constraint("regex", "[a-z ]{10,20}"), top_logprobs=-1),
        request("scored", 400, prompt_logprobs=1),
        request("uncached", 400, use_prefix_cache=False),
    ]
    return plain + odd


@pytest.fixture(scope="module")
def alone(synthetic_model: Path, requests: list[Submit]) -> list[list[tuple[object, ...]]]:
    """What one worker answers."""
    found: list[list[tuple[object, ...]]] = []

    async def test(fleet: Fleet) -> None:
        found.extend(await answers(fleet, requests))

    on_a_fleet(synthetic_model, FleetShape(1), test)
    return found


def test_streams_by_two_workers_are_those_by_one(synthetic_model: Path, requests, alone) -> None:
    async def test(fleet: Fleet) -> None:
        assert await answers(fleet, requests) == alone
        stats = await fleet.stats(PATIENCE)
        prefiller, decoder = stats["worker-0"], stats["worker-1"]
        assert prefiller.generated_tokens == 0
        assert prefiller.computed_tokens > 1300
        # It computed short prompts, what must not come from a cache, and each last token.
        assert decoder.computed_tokens - decoder.generated_tokens <= 1 + 255 + 400 + 400 + 14
        await idle(fleet)

    on_a_fleet(synthetic_model, FleetShape(0, 1, 1), test)


@pytest.mark.parametrize("victim", [0, 1])
def test_streams_are_the_same_whichever_worker_is_killed(
    synthetic_model: Path, requests, alone, victim: int
) -> None:
    async def test(fleet: Fleet) -> None:
        asked = asyncio.create_task(answers(fleet, requests))
        for _ in range(3):
            await asyncio.sleep(0.15)
            if (pid := fleet.health()[victim].pid) is not None:
                os.kill(pid, signal.SIGKILL)
        assert await asked == alone
        while any(replica.state is not State.READY for replica in fleet.health()):
            await asyncio.sleep(0.01)
        await idle(fleet)

    on_a_fleet(synthetic_model, FleetShape(0, 1, 1), test)


def test_leaving_while_the_prompt_is_computed_frees_both_workers(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        for number in range(10):
            async with aclosing(fleet.submit(request(f"left {number}", 1300 + number))):
                await asyncio.sleep(0.02 * number)
        await idle(fleet)

    on_a_fleet(synthetic_model, FleetShape(0, 1, 1), test)
