"""Roles, draining, rolling restart and reload, with real workers under streams that must not notice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from fleet.joining import PATIENCE
from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError, WorkerUnavailableError
from headrace.fleet import Fleet, FleetShape, RestartPolicy, State
from headrace.fleet.planner import Limits
from headrace.worker.messages import Submit
from headrace.worker.settings import WorkerSettings
from synthetic import write_synthetic

CONTEXT = 600
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=4)


def on_a_fleet(model: Path, shape: FleetShape, test: Callable[[Fleet], Awaitable[None]]) -> None:
    settings = WorkerSettings(
        model=str(model), threads=1, max_batch_tokens=64, cache_tokens=8 * CONTEXT, context_length=CONTEXT
    )

    async def body() -> None:
        async with Fleet(settings, shape, RestartPolicy(first_delay=0.05, load_attempts=2)) as fleet:
            await asyncio.wait_for(test(fleet), 60)

    asyncio.run(body())


def request(number: int, tokens: int = 250) -> Submit:
    return Submit(
        id=f"r{number}",
        prompt=[(7 * i + number) % 250 for i in range(20 + 40 * number)],
        max_tokens=tokens,
        sampling=msgspec.structs.replace(SAMPLED, seed=number),
        ignore_eos=True,
    )


async def tokens_of(fleet: Fleet, asked: Submit, begun: asyncio.Event | None = None) -> list[int]:
    """All of its answer; sets `begun` when the first of it is there."""
    found: list[int] = []
    async for event in fleet.submit(asked):
        found += event.token_ids
        if begun is not None:
            begun.set()
    return found


async def streams(fleet: Fleet, numbers: Iterable[int]) -> list[asyncio.Task[list[int]]]:
    """The requests of these numbers, when the answers to all of them have begun."""
    begun = {number: asyncio.Event() for number in numbers}
    tasks = [asyncio.create_task(tokens_of(fleet, request(number), event)) for number, event in begun.items()]
    await asyncio.gather(*(event.wait() for event in begun.values()))
    return tasks


async def asking(fleet: Fleet, until: asyncio.Event) -> list[tuple[int, list[int]]]:
    """Answers to the same few requests, again and again, four at a time."""
    found: list[tuple[int, list[int]]] = []
    turns = iter(range(1_000_000))

    async def client() -> None:
        while not until.is_set():
            turn = next(turns)
            asked = msgspec.structs.replace(request(turn % 6), id=f"turn {turn}")
            found.append((turn % 6, await tokens_of(fleet, asked)))

    await asyncio.gather(*(client() for _ in range(4)))
    return found


def pids(fleet: Fleet) -> list[int | None]:
    return [replica.pid for replica in fleet.health()]


@pytest.fixture(scope="module")
def expected(synthetic_model: Path) -> list[list[int]]:
    """What each request's answer is."""
    found: list[list[int]] = []

    async def test(fleet: Fleet) -> None:
        found.extend(await asyncio.gather(*(tokens_of(fleet, request(number)) for number in range(6))))

    on_a_fleet(synthetic_model, FleetShape(1), test)
    return found


@pytest.mark.parametrize("room", [1 << 60, 0])
def test_a_rolling_restart_replaces_every_worker_and_no_stream_notices(
    synthetic_model: Path, expected: list[list[int]], room: int
) -> None:
    async def test(fleet: Fleet) -> None:
        fleet.rolling._free_bytes = lambda: room
        most, ended = 0, asyncio.Event()
        before = pids(fleet)
        clients = asyncio.create_task(asking(fleet, ended))
        await asyncio.sleep(0.3)
        restarting = asyncio.create_task(fleet.rolling.restart())
        while not restarting.done():
            most = max(most, sum(pid is not None for pid in pids(fleet)))
            await asyncio.sleep(0.01)
        await restarting
        ended.set()
        for number, tokens in await clients:
            assert tokens == expected[number]
        assert not set(before) & set(pids(fleet))
        health = fleet.health()
        assert [(replica.state, replica.role) for replica in health] == [(State.READY, "both")] * 2
        assert most == (3 if room else 2)  # beside the old one where memory allows it, else after it
        progress = fleet.rolling.progress
        assert progress is not None
        assert (progress.total, progress.done, progress.running, progress.error) == (2, 2, False, "")
        assert all(stats.blocks_used == 0 for stats in (await fleet.stats(PATIENCE)).values())

    on_a_fleet(synthetic_model, FleetShape(2), test)


def test_one_worker_alone_is_replaced_too(synthetic_model: Path, expected: list[list[int]]) -> None:
    async def test(fleet: Fleet) -> None:
        fleet.rolling._free_bytes = lambda: 0
        running = await streams(fleet, range(3))
        restarting = asyncio.create_task(fleet.rolling.restart())
        while fleet.health()[0].state is State.READY:
            await asyncio.sleep(0)
        later = [asyncio.create_task(tokens_of(fleet, request(number))) for number in range(3, 6)]
        await restarting
        assert await asyncio.gather(*running, *later) == expected

    on_a_fleet(synthetic_model, FleetShape(1), test)


def test_a_reload_serves_other_weights_and_ends_streams_by_the_old_ones(
    synthetic_model: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    model, new = tmp_path / "model.gguf", write_synthetic(tmp_path / "new.gguf", seed=9)
    model.write_bytes(synthetic_model.read_bytes())

    async def test(fleet: Fleet) -> None:
        old = fleet.facts.fingerprint
        running = await streams(fleet, range(6))
        new.replace(model)
        await fleet.rolling.restart(reload=True)
        assert await asyncio.gather(*running) == expected
        assert fleet.facts.fingerprint != old
        assert {replica.fingerprint for replica in fleet.health()} == {fleet.facts.fingerprint.digest()}
        assert await tokens_of(fleet, msgspec.structs.replace(request(1), id="new")) != expected[1]

    on_a_fleet(model, FleetShape(2), test)


def test_a_model_that_cannot_be_loaded_takes_no_worker_away(
    synthetic_model: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(synthetic_model.read_bytes())

    async def test(fleet: Fleet) -> None:
        before = pids(fleet)
        (tmp_path / "broken.gguf").replace(model)
        with pytest.raises(WorkerUnavailableError, match="cannot serve"):
            await fleet.rolling.restart(reload=True)
        progress = fleet.rolling.progress
        assert progress is not None and progress.error and progress.done == 0
        assert pids(fleet) == before
        assert await tokens_of(fleet, request(1)) == expected[1]

    (tmp_path / "broken.gguf").write_bytes(b"GGUF but no more")
    on_a_fleet(model, FleetShape(2), test)


def test_a_drained_worker_leaves_and_its_streams_go_on(
    synthetic_model: Path, expected: list[list[int]]
) -> None:
    async def test(fleet: Fleet) -> None:
        running = await streams(fleet, range(6))
        await fleet.rolling.drain("worker-0")
        assert [replica.name for replica in fleet.health()] == ["worker-1"]
        assert await asyncio.gather(*running) == expected
        with pytest.raises(RequestError, match="only worker") as last:
            await fleet.rolling.drain("worker-1")
        with pytest.raises(RequestError, match="no worker 'worker-0'; there are 'worker-1'") as unknown:
            await fleet.rolling.drain("worker-0")
        assert (last.value.status, unknown.value.status) == (409, 404)

    on_a_fleet(synthetic_model, FleetShape(2), test)


def test_figures_are_told_though_a_worker_leaves_meanwhile(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        pid = pids(fleet)[0]
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            asked = asyncio.create_task(fleet.stats(PATIENCE))
            await fleet.rolling.drain("worker-1")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert "worker-0" in await asked

    on_a_fleet(synthetic_model, FleetShape(2), test)


def test_one_thing_at_a_time(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        progress = fleet.rolling.begin_restart()
        with pytest.raises(RequestError, match="being restarted"):
            fleet.rolling.begin_restart()
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="being restarted"):
            await fleet.rolling.drain("worker-0")
        assert progress.total == 2

    on_a_fleet(synthetic_model, FleetShape(2), test)  # and the fleet ends while it is under way


def test_roles_change_while_streams_run(synthetic_model: Path, expected: list[list[int]]) -> None:
    async def test(fleet: Fleet) -> None:
        running = await streams(fleet, range(6))
        fleet.set_role("worker-0", "prefill")
        fleet.set_role("worker-1", "decode")
        long = Submit(id="long", prompt=[i % 250 for i in range(500)], max_tokens=4, sampling=SAMPLED)
        before = (await fleet.stats(PATIENCE))["worker-0"]
        await tokens_of(fleet, long)
        after = (await fleet.stats(PATIENCE))["worker-0"]
        assert after.computed_tokens - before.computed_tokens >= 400  # it computed the prompt
        assert await asyncio.gather(*running) == expected
        for name, role in (("worker-0", "decode"), ("worker-1", "prefill")):
            with pytest.raises(RequestError, match="No other worker is for") as refused:
                fleet.set_role(name, role)
            assert refused.value.status == 409
        fleet.set_role("worker-0", "both")
        assert [replica.role for replica in fleet.health()] == ["both", "decode"]
        with pytest.raises(RequestError, match="There is no worker 'worker-9'"):
            fleet.set_role("worker-9", "both")

    on_a_fleet(synthetic_model, FleetShape(2), test)


def test_a_fleet_plans_by_what_it_was_asked_and_moves_its_roles(synthetic_model: Path) -> None:
    async def test(fleet: Fleet) -> None:
        with pytest.raises(RequestError, match="too little traffic"):
            await fleet.sizing.plan(Limits(ttft=1.0))
        with pytest.raises(RequestError, match="needs a limit"):
            await fleet.sizing.plan()
        for turn in range(4):
            asked = (msgspec.structs.replace(request(n, 30), id=f"{turn} {n}") for n in range(6))
            await asyncio.gather(*(tokens_of(fleet, one) for one in asked))
        speeds = await fleet.sizing.speeds()
        assert speeds and all(0 < speed.row < 0.1 for speed in speeds.values())
        load = fleet.sizing.load
        assert load is not None
        assert {lengths.output for lengths in load.lengths} == {30}
        assert max(lengths.cached for lengths in load.lengths) >= 96
        plan = await fleet.sizing.plan(Limits(ttft=60.0))
        assert plan.meets and plan.pools.workers >= 1
        await fleet.sizing.look()
        assert {replica.role for replica in fleet.health()} == {"both"}

    on_a_fleet(synthetic_model, FleetShape(2), test)
