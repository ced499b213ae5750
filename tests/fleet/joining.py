"""Workers that join over TCP, as processes, and the gateway's side of them in the test's own process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from headrace.backends.sampling import SamplingParams
from headrace.fleet import EncryptedPort, Fleet, FleetShape, Registry, State
from headrace.worker.messages import Submit, TokenEvent
from headrace.worker.secret import Keys
from headrace.worker.settings import WorkerSettings

BEAT = 0.2
PATIENCE = 30.0
"""Seconds that a busy machine's worker has to tell its gauges."""
CONTEXT = 400
ENGINE = ("--threads", "1", "--cache-tokens", str(4 * CONTEXT), "--context-length", str(CONTEXT))

Told = tuple[object, ...]


def settings(model: Path) -> WorkerSettings:
    """What `ENGINE` says."""
    return WorkerSettings(model=str(model), threads=1, cache_tokens=4 * CONTEXT, context_length=CONTEXT)


def requests(count: int, tokens: int, label: str = "r") -> list[Submit]:
    """Sampled ones, each with a prompt and a seed of its own."""
    return [
        Submit(
            id=f"{label}{i}",
            prompt=[(7 * j + 31 * i + 3) % 250 for j in range(20 + i)],
            max_tokens=tokens,
            sampling=SamplingParams(temperature=1.0, seed=i),
            ignore_eos=True,
        )
        for i in range(count)
    ]


def told(events: Sequence[TokenEvent]) -> list[Told]:
    """What a client gets to see of them."""
    return [(event.text, event.token_ids, event.finish_reason) for event in events]


async def answers(fleet: Fleet, asked: Sequence[Submit]) -> list[list[Told]]:
    """All of them, computed together."""

    async def one(message: Submit) -> list[Told]:
        return told([event async for event in fleet.submit(message)])

    return await asyncio.gather(*(one(message) for message in asked))


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), seconds)


class JoiningWorker:
    """A running `headrace worker`."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process, self.name = process, name

    def ended(self) -> tuple[int, str]:
        """Exit status and what was told, once it has ended."""
        _, told = self.process.communicate(timeout=20)
        return self.process.returncode, told


@contextmanager
def joining(
    address: str, secret: Path, model: Path, name: str, *options: str, within: Sequence[str] = ()
) -> Iterator[JoiningWorker]:
    """`within` is a command that runs the worker's."""
    kept = (name for name in os.environ if not name.startswith("HEADRACE_") or name == "HEADRACE_HOME")
    environment = {name: os.environ[name] for name in kept}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "headrace", "worker", "--join", address, "--secret-file", str(secret)]
    command += ["--model", str(model), "--name", name, *ENGINE, *options]
    process = subprocess.Popen(
        [*within, *command], stderr=subprocess.PIPE, text=True, env=environment, cwd=secret.parent
    )
    try:
        yield JoiningWorker(process, name)
    finally:
        process.kill()
        print(f"{name} said: {process.communicate()[1]}")


@asynccontextmanager
async def gateway(port: int, keys: Keys, model: Path, names: Sequence[str]) -> AsyncIterator[Fleet]:
    """A fleet of workers that join at the port, when those of these names are ready."""
    door = EncryptedPort("127.0.0.1", port, keys, BEAT)
    registry = Registry(door, lambda: [model.stem], BEAT)
    fleet = Fleet(settings(model), FleetShape(0), registry=registry, model=model.stem)
    try:
        async with fleet:
            await until(lambda: all(states(fleet).get(name) is State.READY for name in names), seconds=60)
            yield fleet
    finally:
        await registry.close()


def states(fleet: Fleet) -> dict[str, State]:
    """By name."""
    return {replica.name: replica.state for replica in fleet.health()}


async def is_idle(fleet: Fleet) -> bool:
    """Whether every worker holds no block for anybody."""
    stats = (await fleet.stats(PATIENCE)).values()
    return all((now.running, now.waiting, now.blocks_used) == (0, 0, 0) for now in stats)
