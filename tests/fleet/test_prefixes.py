"""Questions about prefix caches, and pins, with a real worker that is killed now and then."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.fleet import Fleet, RestartPolicy, State
from headrace.worker.messages import Submit
from headrace.worker.settings import WorkerSettings

QUICK = RestartPolicy(first_delay=0.05)
CONTEXT = 256
PROMPT = [(7 * i + 3) % 250 for i in range(70)]


def on_a_fleet(model: Path, test: Callable[[Fleet], Awaitable[None]], **changes: bool) -> None:
    settings = WorkerSettings(
        model=str(model),
        backend="reference",
        threads=1,
        max_batch_tokens=64,
        cache_tokens=2 * CONTEXT,
        context_length=CONTEXT,
        **changes,  # type: ignore[arg-type]
    )

    async def body() -> None:
        async with Fleet(settings, policy=QUICK) as fleet:
            await asyncio.wait_for(test(fleet), 60)

    asyncio.run(body())


async def generate(fleet: Fleet, name: str, prompt: list[int], salt: str = "") -> int:
    """Cached tokens of a short request."""
    sampling = SamplingParams(temperature=0)
    stream = fleet.submit(Submit(name, prompt, 2, sampling, ignore_eos=True, salt=salt))
    return [event async for event in stream][-1].cached_tokens


def test_what_is_told_of_a_prompt_is_what_a_request_then_finds(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        assert (await fleet.prefixes.explain(PROMPT)).cached == 0
        await generate(fleet, "first", PROMPT)
        other = [*PROMPT[:40], 1, 2, 3]
        told = await fleet.prefixes.explain(other)
        assert (told.cached, told.continuation[:3]) == (40, PROMPT[40:43])
        assert (await fleet.prefixes.explain(other, "secret")).cached == 0
        assert await generate(fleet, "second", other) == 40
        (hottest, *_) = await fleet.prefixes.hottest(5)
        assert (list(hottest.tokens), hottest.hits) == (PROMPT[:32], 1)
        assert await fleet.prefixes.hottest(5, "secret") == []

    on_a_fleet(synthetic_model, test)


def test_a_pin_is_computed_kept_under_pressure_restored_after_a_crash_and_taken_back(
    synthetic_model: Path,
) -> None:
    async def test(fleet: Fleet) -> None:
        pin, told = await fleet.prefixes.pin(PROMPT)
        assert (told.tokens, told.blocks, told.limit) == (64, 4, 16)
        for number in range(4):  # more than the cache holds
            await generate(fleet, f"r{number}", [number + 100, *range(200)])
        assert await generate(fleet, "again", PROMPT) == 64
        pid = fleet.health()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        restored = []
        while not restored:
            assert time.monotonic() < deadline, "the pin was not restored"
            await asyncio.sleep(0.02)
            if fleet.health()[0].state is State.READY and fleet.health()[0].pid not in (None, pid):
                restored = [p for p in await fleet.prefixes.hottest(5) if p.pinned]
        assert list(restored[0].tokens[:64]) == PROMPT[:64]
        assert await fleet.prefixes.unpin(pin.id) == pin
        assert await fleet.prefixes.unpin(pin.id) is None
        assert not [p for p in await fleet.prefixes.hottest(5) if p.pinned]

    on_a_fleet(synthetic_model, test)


def test_a_pin_that_cannot_be_is_refused_and_leaves_nothing_pinned(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        with pytest.raises(RequestError, match="whole blocks of 16 tokens; this prompt has 15"):
            await fleet.prefixes.pin(PROMPT[:15])
        first, _ = await fleet.prefixes.pin([*PROMPT, *PROMPT])
        with pytest.raises(RequestError, match="8 are pinned and at most 16"):
            await fleet.prefixes.pin([9] * 200)
        assert list(fleet.prefixes.pins) == [first.id]

    on_a_fleet(synthetic_model, test)


def test_without_a_prefix_cache_nothing_is_found_or_pinned(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        await generate(fleet, "first", PROMPT)
        assert (await fleet.prefixes.explain(PROMPT)).cached == 0
        with pytest.raises(RequestError, match="--no-prefix-cache"):
            await fleet.prefixes.pin(PROMPT)

    on_a_fleet(synthetic_model, test, prefix_cache=False)
