"""Kills a random worker of a loaded fleet every few seconds, and checks that no stream shows it.

    make chaos ARGS="--seconds 60 --every 5 --prefill 1 --decode 2"

First the fleet answers every request once, undisturbed; then it is measured how many it can answer a second;
then they arrive at a share of that rate while workers are killed. Exit status 0: every request was answered
with the very text of the undisturbed run, and in the end no block, process or shared memory is left over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

WORDS = [
    "river",
    "stone",
    "light",
    "water",
    "mill",
    "wheel",
    "gate",
    "field",
    "cloud",
    "bread",
    "letter",
    "open",
]
SETTLE_SECONDS = 20.0


@dataclass
class Report:
    """What came of the requests."""

    answered: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=dict)
    """By the role of the worker."""
    latencies: list[float] = field(default_factory=list)


def main() -> None:
    arguments = parse_arguments()
    report, figures = asyncio.run(run(arguments))
    sound = not (report.wrong or report.failed or figures["left over"])
    if report.latencies:
        centiles = quantiles(report.latencies, n=100) if len(report.latencies) > 1 else report.latencies * 99
        figures |= {"latency p50 s": round(centiles[49], 2), "latency p99 s": round(centiles[98], 2)}
    told = {
        "answered": report.answered,
        "wrong": len(report.wrong),
        "failed": len(report.failed),
        "kills": report.kills,
        **figures,
    }
    print(json.dumps(told, indent=None if arguments.json else 2))
    for line in [*report.wrong, *report.failed][:10]:
        print(f"chaos: {line}", file=sys.stderr)
    sys.exit(0 if sound else 1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill workers under load, and check every answer.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=5, help="seconds between two kills")
    parser.add_argument(
        "--share", type=float, default=0.8, help="of the requests a second that can be answered"
    )
    parser.add_argument("--prefill", type=int, default=1)
    parser.add_argument("--decode", type=int, default=2)
    parser.add_argument("--requests", type=int, default=48, help="how many different ones there are")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("serve_args", nargs="*", help="handed to `headrace serve`, after --")
    return parser.parse_args()


async def run(arguments: argparse.Namespace) -> tuple[Report, dict[str, Any]]:
    shared = shared_memory()
    draw = random.Random(arguments.seed)
    bodies = [body(draw, arguments.model, number) for number in range(arguments.requests)]
    report = Report()
    async with serving(arguments) as (server, client):
        expected = await asyncio.gather(*(answer(client, asked) for asked in bodies))
        capacity = await measure(client, bodies)
        print(f"chaos: {capacity:.1f} requests a second can be answered", file=sys.stderr)
        killing = asyncio.create_task(kill(client, draw, report, arguments))
        await load(client, bodies, expected, capacity * arguments.share, report, arguments)
        await killing
        left = await settled(client)
        children = workers_of(server.pid)
    if alive := [pid for pid in children if Path(f"/proc/{pid}").exists()]:
        left.append(f"processes {alive}")
    if more := shared_memory() - shared:
        left.append(f"shared memory {sorted(more)}")
    return report, {"capacity requests/s": round(capacity, 2), "left over": left}


def body(draw: random.Random, model: str, number: int) -> dict[str, Any]:
    """A request of one of the shapes that clients send; every third is sampled, some share a prefix."""
    words = draw.choice([20, 60, 200, 500, 900])
    shared = " ".join(WORDS * 20) if number % 4 == 0 else ""
    text = " ".join(draw.choice(WORDS) for _ in range(words))
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"{shared} {number} {text}"}],
        "max_tokens": draw.choice([8, 30, 80, 160]),
        "temperature": 0.0 if number % 3 else 1.0,
        "seed": number,
        "stream": True,
        "ignore_eos": number % 2 == 0,
    }


@asynccontextmanager
async def serving(
    arguments: argparse.Namespace,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    shape = ["--prefill", str(arguments.prefill), "--decode", str(arguments.decode), "--threads", "1"]
    command = [sys.executable, "-m", "headrace", "serve", "--port", "0", "--model", arguments.model]
    server = await asyncio.create_subprocess_exec(
        *command, *shape, *arguments.serve_args, stderr=subprocess.PIPE, stdout=2
    )
    assert server.stderr is not None
    url = ""
    while not url:
        line = (await server.stderr.readline()).decode()
        if not line:
            raise SystemExit("chaos: the server did not start")
        if "serving" in line:
            url = next(word.rstrip(";") for word in line.split() if word.startswith("http"))
    told = asyncio.create_task(drained(server.stderr))
    limits = httpx.Limits(max_connections=None)
    try:
        async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
            yield server, client
    finally:
        server.send_signal(signal.SIGTERM)
        await server.wait()
        await told


async def drained(stream: asyncio.StreamReader) -> None:
    """A pipe that nobody reads would stop the server."""
    while await stream.readline():
        pass


async def answer(client: httpx.AsyncClient, asked: dict[str, Any]) -> str:
    """The text of a streamed answer, and why it ended."""
    text, reason, done = "", None, False
    async with client.stream("POST", "/v1/chat/completions", json=asked) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {(await response.aread()).decode()[:300]}")
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done = True
            elif data:
                event = json.loads(data)
                if "error" in event:
                    raise RuntimeError(str(event["error"]))
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    reason = choice.get("finish_reason") or reason
    if not done:
        raise RuntimeError("the stream broke off")
    return f"{text}|{reason}"


async def measure(client: httpx.AsyncClient, bodies: list[dict[str, Any]]) -> float:
    """Requests a second, with as many under way as keep the fleet busy."""
    waiting = asyncio.Semaphore(16)

    async def one(asked: dict[str, Any]) -> None:
        async with waiting:
            await answer(client, asked)

    began = time.monotonic()
    await asyncio.gather(*map(one, bodies))
    return len(bodies) / (time.monotonic() - began)


async def load(
    client: httpx.AsyncClient,
    bodies: list[dict[str, Any]],
    expected: list[str],
    rate: float,
    report: Report,
    arguments: argparse.Namespace,
) -> None:
    """Requests arrive by a Poisson process; all that were sent are waited for."""
    draw = random.Random(arguments.seed + 1)

    async def one(number: int) -> None:
        began = time.monotonic()
        try:
            found = await answer(client, bodies[number])
        except Exception as error:
            report.failed.append(f"request {number}: {error!r}")
            return
        report.answered += 1
        report.latencies.append(time.monotonic() - began)
        if found != expected[number]:
            report.wrong.append(f"request {number}: {found[:80]!r} instead of {expected[number][:80]!r}")

    end = time.monotonic() + arguments.seconds
    sent = []
    while time.monotonic() < end:
        sent.append(asyncio.create_task(one(draw.randrange(len(bodies)))))
        await asyncio.sleep(draw.expovariate(rate))
    await asyncio.gather(*sent)


async def kill(
    client: httpx.AsyncClient, draw: random.Random, report: Report, arguments: argparse.Namespace
) -> None:
    """SIGKILL to a worker that is running, whatever it is doing."""
    end = time.monotonic() + arguments.seconds
    while time.monotonic() + arguments.every < end:
        await asyncio.sleep(arguments.every)
        workers = [w for w in (await client.get("/health")).json()["workers"] if w["pid"] is not None]
        if workers:
            victim = draw.choice(workers)
            report.kills[victim["role"]] = report.kills.get(victim["role"], 0) + 1
            os.kill(victim["pid"], signal.SIGKILL)


async def settled(client: httpx.AsyncClient) -> list[str]:
    """What the workers still hold, once all have come back and had time to tidy up."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        health = (await client.get("/health")).json()
        states = {worker["state"] for worker in health["workers"]}
        metrics = (await client.get("/metrics")).text.splitlines()
        held = [
            line
            for line in metrics
            if line.startswith(("headrace_cache_blocks_used{", "headrace_running_requests{"))
            and float(line.rsplit(" ", 1)[1]) > 0
        ]
        if states == {"ready"} and not held:
            return []
        if time.monotonic() > deadline:
            return [*held, *sorted(states - {"ready"})]
        await asyncio.sleep(0.5)


def workers_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def shared_memory() -> set[str]:
    return {entry.name for entry in Path("/dev/shm").iterdir()}


if __name__ == "__main__":
    main()
