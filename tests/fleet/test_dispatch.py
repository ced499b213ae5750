"""Where requests go: to whoever holds their prefix, unless that one is busy, and by role."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec

from fleet.joining import PATIENCE
from headrace.backends.sampling import SamplingParams
from headrace.fleet import Fleet, FleetShape, RestartPolicy, State
from headrace.worker.messages import Submit
from headrace.worker.settings import WorkerSettings

CONTEXT = 1500


def on_two(model: Path, test: Callable[[Fleet], Awaitable[None]]) -> None:
    settings = WorkerSettings(
        model=str(model), threads=1, max_batch_tokens=64, cache_tokens=6 * CONTEXT, context_length=CONTEXT
    )

    async def body() -> None:
        async with Fleet(settings, FleetShape(2), RestartPolicy(first_delay=0.05)) as fleet:
            await asyncio.wait_for(test(fleet), 60)

    asyncio.run(body())


async def ask(fleet: Fleet, name: str, prompt: list[int], tokens: int = 4) -> int:
    """Tokens of the prompt that were found in a cache."""
    asked = Submit(name, prompt, tokens, SamplingParams(temperature=0), ignore_eos=True)
    return max([event.cached_tokens async for event in fleet.submit(asked)])


def prompt(start: int, length: int = 400) -> list[int]:
    return [(start * 31 + 7 * i) % 250 for i in range(length)]


def test_a_prompt_goes_where_its_prefix_is(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        for number in range(6):
            await ask(fleet, f"first {number}", prompt(number))
        for number in range(6):
            assert await ask(fleet, f"second {number}", [*prompt(number), 1, 2, 3]) == 400

    on_two(synthetic_model, test)


def test_a_hot_prefix_does_not_drown_one_replica(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        await ask(fleet, "first", prompt(1, 200))
        long = [ask(fleet, f"r{i}", [*prompt(1, 200), *prompt(50 + i, 1000)], 30) for i in range(8)]
        await asyncio.gather(*long)
        computed = [stats.computed_tokens for stats in (await fleet.stats(PATIENCE)).values()]
        assert min(computed) > 0.3 * max(computed)

    on_two(synthetic_model, test)


def test_a_new_worker_is_not_thought_to_have_the_old_ones_cache(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        await ask(fleet, "first", prompt(1))
        (holder,) = (
            i for i, stats in enumerate((await fleet.stats(PATIENCE)).values()) if stats.prompt_tokens
        )
        pid = fleet.health()[holder].pid
        assert pid is not None
        async with aclosing(fleet.submit(Submit("r", prompt(9), 400, SamplingParams(temperature=0)))):
            os.kill(pid, signal.SIGKILL)
            while fleet.health()[holder].restarts == 0 or fleet.health()[holder].state is not State.READY:
                await asyncio.sleep(0.01)
        assert await ask(fleet, "second", prompt(1)) == 0
        assert await ask(fleet, "third", prompt(1)) == 399

    on_two(synthetic_model, test)


def test_a_begun_stream_goes_on_where_its_bits_are_the_same(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        stream = fleet.submit(Submit("r", prompt(1), 30, SamplingParams(temperature=0), ignore_eos=True))
        began = await anext(stream)
        assert stream.fingerprint == fleet.facts.fingerprint
        replicas = {replica.name: replica for replica in fleet.replicas}
        other = replicas["worker-1"].ready
        assert other is not None
        replicas["worker-1"].ready = msgspec.structs.replace(
            other, fingerprint=msgspec.structs.replace(other.fingerprint, version=99)
        )
        for _ in range(20):
            placement = fleet._dispatcher.place(stream, replicas.values())
            assert placement is not None and placement.replica.name == "worker-0"
            fleet._dispatcher.ended("r")
        assert began.token_ids
        await stream.aclose()

    on_two(synthetic_model, test)


def test_the_first_token_is_foreseen_sooner_where_the_prefix_is_cached_and_later_behind_others(
    synthetic_model: Path,
) -> None:
    async def test(fleet: Fleet) -> None:
        known = prompt(1, 800)
        await ask(fleet, "first", known)
        fresh, cached = fleet.first_token_in(len(known)), fleet.first_token_in(known)
        assert fresh is not None and cached is not None and cached < 0.5 * fresh
        waiting = [asyncio.create_task(ask(fleet, f"r{i}", prompt(9 + i, 1000))) for i in range(6)]
        await asyncio.sleep(0)
        later = fleet.first_token_in(known)
        assert later is not None and later > cached
        await asyncio.gather(*waiting)

    on_two(synthetic_model, test)
