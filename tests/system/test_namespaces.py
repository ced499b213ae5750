"""Workers in network namespaces of their own, over links that are slow, lose packets and are cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from fleet.joining import Told, answers, is_idle, joining, requests, settings, states
from headrace.fleet import EncryptedPort, Fleet, FleetShape, Registry, State
from headrace.worker.secret import new_secret, read_keys
from system import netns

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

BEAT = 0.2
PORT = 7070
Result = TypeVar("Result")


def test_streams_over_bad_links_of_which_one_is_cut_are_those_of_a_single_worker(
    synthetic_model: Path, tmp_path: Path
) -> None:
    if reason := netns.why_not():
        pytest.skip(reason)
    secret = tmp_path / "secret"
    secret.write_text(new_secret())

    async def single() -> list[list[Told]]:
        async with Fleet(settings(synthetic_model)) as fleet:
            return await answers(fleet, requests(8, 100))

    async def cut_and_mended(star: netns.Star) -> tuple[list[list[list[Told]]], set[str]]:
        door = EncryptedPort("0.0.0.0", PORT, read_keys(secret), BEAT)
        registry = Registry(door, lambda: [synthetic_model.stem], BEAT)
        fleet = Fleet(settings(synthetic_model), FleetShape(0), registry=registry, model=synthetic_model.stem)
        seen: set[str] = set()
        rounds: list[list[list[Told]]] = []

        async def load() -> None:
            """Eight streams at a time, until asked to stop."""
            while not done.is_set():
                rounds.append(await answers(fleet, requests(8, 100, f"{len(rounds)}-")))

        async def until(state: State) -> None:
            deadline = time.monotonic() + 30
            while states(fleet).get("w0") is not state:
                assert time.monotonic() < deadline, states(fleet)
                await asyncio.sleep(0.02)
            seen.add(state.value)

        done = asyncio.Event()
        try:
            async with fleet:
                await until(State.READY)
                while states(fleet).get("w1") is not State.READY:
                    await asyncio.sleep(0.02)
                loading = asyncio.create_task(load())
                await asyncio.sleep(0.5)
                star.cut(star.others[0])
                await until(State.LOST)
                await asyncio.sleep(0.5)
                star.mend(star.others[0])
                await until(State.READY)
                await asyncio.sleep(0.5)
                done.set()
                await loading
                deadline = time.monotonic() + 10
                while not await is_idle(fleet):
                    assert time.monotonic() < deadline, await fleet.stats()
        finally:
            await registry.close()
        return rounds, seen

    expected = asyncio.run(single())
    with netns.star(2, delay_ms=20, loss_percent=1.0) as star, ExitStack() as stack:
        for number, name in enumerate(star.others):
            within = "ip", "netns", "exec", name
            address = f"{star.address(name)}:{PORT}"
            stack.enter_context(joining(address, secret, synthetic_model, f"w{number}", within=within))
        rounds, seen = inside(star.middle, lambda: asyncio.run(cut_and_mended(star)))
    assert seen == {"ready", "lost"}
    assert len(rounds) > 1
    assert all(found == expected for found in rounds)


def inside(namespace: str, work: Callable[[], Result]) -> Result:
    """Does the work on a thread that lives in the namespace."""
    with ThreadPoolExecutor(1, initializer=netns.enter, initargs=(namespace,)) as thread:
        return thread.submit(work).result()
