"""Puts mixed traffic on a server that this script starts, for as long as wanted, and watches its memory.

    make soak ARGS="--minutes 60"
    make soak ARGS="--overload --minutes 1"

Two callers, each with a key of its own, send everything that clients send, well and badly behaved ones. With
--overload they send 20 times as many requests as run at a time, one of them ten times the other's. Exit
status 0: no request failed that should not, and no block of the KV cache was left in use.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, quantiles
from typing import Any

import httpx

from headrace.gateway.keys import new_key

KEYS = ("heavy", "light")
SAMPLE_SECONDS = 3.0
SETTLE_SECONDS = 30.0
"""How long the server may take, once the traffic has ended, to give every block back."""
OVERLOAD = 20
"""Requests that are on their way at a time under --overload, as a multiple of those that run."""
OVERLOAD_RUNNING = 8
OVERLOAD_QUEUE = 16
WORDS = ["river", "stone", "light", "water", "mill", "wheel", "gate", "field", "cloud", "bread", "letter"]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class WrongAnswerError(Exception):
    """An answer that is not what the request should have got."""


@dataclass
class Report:
    """What came of the requests, and the memory over time."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """By kind of request and what became of it; what went wrong begins with "WRONG"."""
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """Seconds since the start, and MB by process."""
    latencies: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in KEYS})
    """Seconds of the answered requests, by key; only under --overload."""

    @property
    def wrong(self) -> int:
        return sum(count for outcome, count in self.outcomes.items() if outcome.startswith("WRONG"))

    def slopes(self) -> dict[str, float]:
        """MB an hour by least squares over the second half, by process."""
        half = self.samples[len(self.samples) // 2 :]
        if len(half) < 2:
            return {}
        hours = [seconds / 3600 for seconds, _ in half]
        return {
            name: round(linear_regression(hours, [memory.get(name, 0.0) for _, memory in half]).slope, 2)
            for name in half[0][1]
        }


class Target:
    """The running server and the clients' side of it."""

    def __init__(self, url: str, keys: dict[str, str], pid: int, model: str) -> None:
        self.pid = pid
        self.model = model
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.clients = {
            name: httpx.AsyncClient(
                base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120, limits=limits
            )
            for name, key in keys.items()
        }

    async def gauge(self, name: str) -> float:
        text = (await self.clients["light"].get("/metrics")).text
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name}{{")
        )

    def memory(self) -> dict[str, float]:
        """MB of the gateway, and of its workers together."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return {"gateway": resident(self.pid), "workers": sum(resident(int(child)) for child in children)}


def resident(pid: int) -> float:
    """MB that a process holds for itself: Pss without clean file pages; RSS where the kernel tells no Pss."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes = {name: int(kb) for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", rollup, re.MULTILINE)}
        return (sizes["Pss"] - sizes.get("Pss_File", 0)) / 1024
    except (OSError, KeyError):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            return int(status.split("VmRSS:")[1].split()[0]) / 1024
        return 0.0


@contextlib.contextmanager
def serving(model: str, options: list[str]) -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as folder:
        secrets = {name: new_key() for name in KEYS}
        file = Path(folder) / "keys.toml"
        file.write_text(
            "".join(f'[keys.{name}]\nhash = "{hashed}"\n' for name, (_, hashed) in secrets.items())
        )
        command = [sys.executable, "-m", "headrace", "serve", "--model", model, "--port", "0"]
        command += ["--api-keys", str(file), "--data-dir", folder, "--cache-tokens", "32768", *options]
        log = Path(folder) / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen(command, stderr=stderr, env=dict(os.environ))
        try:
            while not (found := re.search(r"https?://[\w.:\[\]]+", log.read_text())):
                if process.poll() is not None:
                    raise SystemExit(f"soak: the server ended: {log.read_text()}")
                time.sleep(0.1)
            yield Target(found[0], {name: key for name, (key, _) in secrets.items()}, process.pid, model)
        finally:
            process.terminate()
            process.wait(60)


def chat(target: Target, **fields: Any) -> dict[str, Any]:
    words = " ".join(random.choices(WORDS, k=random.randint(3, 120)))
    message = {"role": "user", "content": f"Tell me about: {words}"}
    return {"model": target.model, "messages": [message], "max_tokens": random.randint(4, 48)} | fields


async def expect(client: httpx.AsyncClient, path: str, body: Any, status: int = 200) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    if answer.status_code == 429 and answer.headers.get("retry-after") is None:
        raise WrongAnswerError("429 without Retry-After")
    if answer.status_code != status:
        raise WrongAnswerError(f"{answer.status_code} instead of {status}: {answer.text[:120]}")
    parsed: dict[str, Any] = answer.json()
    return parsed


async def whole(target: Target, client: httpx.AsyncClient) -> None:
    answer = await expect(client, "/v1/chat/completions", chat(target))
    if answer["choices"][0]["finish_reason"] not in ("stop", "length"):
        raise WrongAnswerError("finish_reason")


async def streamed(target: Target, client: httpx.AsyncClient) -> None:
    async with client.stream("POST", "/v1/chat/completions", json=chat(target, stream=True)) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    if answer.status_code != 200 or lines[-1] != "data: [DONE]":
        raise WrongAnswerError(f"a stream of {answer.status_code} that ends in {lines[-1:]}")


async def completion(target: Target, client: httpx.AsyncClient) -> None:
    body = {"model": target.model, "prompt": random.choices(WORDS, k=2), "max_tokens": 16, "logprobs": 2}
    if len((await expect(client, "/v1/completions", body))["choices"]) != 2:
        raise WrongAnswerError("choices")


async def several(target: Target, client: httpx.AsyncClient) -> None:
    answer = await expect(client, "/v1/chat/completions", chat(target, n=3, temperature=1.0))
    if len(answer["choices"]) != 3:
        raise WrongAnswerError("choices")


async def schema(target: Target, client: httpx.AsyncClient) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    answer = await expect(
        client, "/v1/chat/completions", chat(target, response_format=wanted, max_tokens=200)
    )
    choice = answer["choices"][0]
    if choice["finish_reason"] == "stop" and set(json.loads(choice["message"]["content"])) != {"name", "age"}:
        raise WrongAnswerError("not by the schema")


async def tool(target: Target, client: httpx.AsyncClient) -> None:
    function = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}
    fields = {"tools": [function], "tool_choice": "required", "max_tokens": 200}
    answer = await client.post("/v1/chat/completions", json=chat(target, **fields))
    if answer.status_code == 400 and "knows no tools" in answer.text:
        return  # of the model, as it should be told
    if answer.status_code != 200:
        raise WrongAnswerError(f"{answer.status_code}: {answer.text[:120]}")
    choice = answer.json()["choices"][0]
    if choice["finish_reason"] == "tool_calls":
        json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])


async def embedding(target: Target, client: httpx.AsyncClient) -> None:
    body = {"model": target.model, "input": random.choices(WORDS, k=3)}
    if len((await expect(client, "/v1/embeddings", body))["data"]) != 3:
        raise WrongAnswerError("embeddings")


async def vanishing(target: Target, client: httpx.AsyncClient) -> None:
    body = chat(target, stream=True, max_tokens=400, ignore_eos=True)
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            break


async def slow(target: Target, client: httpx.AsyncClient) -> None:
    async with client.stream("POST", "/v1/chat/completions", json=chat(target, stream=True)) as answer:
        async for _ in answer.aiter_raw(16):
            await asyncio.sleep(0.02)


async def bad(target: Target, client: httpx.AsyncClient) -> None:
    wrong = [chat(target, max_tokens=-1), chat(target, temperature="hot"), chat(target, messages=[]), [], {}]
    await expect(client, "/v1/chat/completions", random.choice(wrong), status=400)


TRAFFIC = {
    whole: 6, streamed: 6, completion: 3, several: 2, schema: 2,
    tool: 2, embedding: 2, vanishing: 2, slow: 1, bad: 2,
}  # fmt: skip
"""What clients do, and how often against each other."""


async def until(end: float, one: Callable[[], Awaitable[None]]) -> None:
    while time.monotonic() < end:
        await one()


async def mixed(target: Target, report: Report, end: float, concurrency: int) -> None:
    async def one() -> None:
        act = random.choices(list(TRAFFIC), list(TRAFFIC.values()))[0]
        try:
            await act(target, target.clients[random.choice(KEYS)])
            report.outcomes[f"{act.__name__}: right"] += 1
        except (WrongAnswerError, httpx.HTTPError, ValueError, LookupError) as error:
            report.outcomes[f"WRONG {act.__name__}: {type(error).__name__} {error}"] += 1

    await asyncio.gather(*(until(end, one) for _ in range(concurrency)))


async def overload(target: Target, report: Report, end: float) -> None:
    async def one(key: str) -> None:
        begun = time.monotonic()
        body = chat(target, max_tokens=24, ignore_eos=True)
        try:
            answer = await target.clients[key].post("/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            report.outcomes[f"WRONG {key}: {type(error).__name__}"] += 1
            return
        if answer.status_code == 429 and "retry-after" in answer.headers:
            report.outcomes[f"{key}: refused"] += 1
            await asyncio.sleep(0.5)
        elif answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 24:
            report.outcomes[f"{key}: served"] += 1
            report.latencies[key].append(time.monotonic() - begun)
        else:
            report.outcomes[f"WRONG {key}: {answer.status_code}"] += 1

    total = OVERLOAD * OVERLOAD_RUNNING
    callers = {"light": total // 11, "heavy": total - total // 11}
    await asyncio.gather(
        *(until(end, lambda key=key: one(key)) for key, count in callers.items() for _ in range(count))
    )


async def watch(target: Target, report: Report) -> None:
    begun = time.monotonic()
    while True:
        report.samples.append((round(time.monotonic() - begun, 1), target.memory()))
        await asyncio.sleep(SAMPLE_SECONDS)


async def drive(target: Target, report: Report, arguments: argparse.Namespace) -> float:
    """Puts the traffic on the server; the blocks that were still in use at the end."""
    watcher = asyncio.create_task(watch(target, report))
    end = time.monotonic() + arguments.minutes * 60
    if arguments.overload:
        await overload(target, report, end)
    else:
        await mixed(target, report, end, arguments.concurrency)
    watcher.cancel()
    settled = time.monotonic() + SETTLE_SECONDS
    while (used := await target.gauge("headrace_cache_blocks_used")) and time.monotonic() < settled:
        await asyncio.sleep(0.2)
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description="Mixed traffic for as long as wanted.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--concurrency", type=int, default=12)
    parser.add_argument("--overload", action="store_true", help="20 times the capacity, from two keys")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    running, queue = str(OVERLOAD_RUNNING), str(OVERLOAD_QUEUE)
    report = Report()
    limits = ["--max-running", running, "--max-queue", queue] if arguments.overload else []
    with serving(arguments.model, limits) as target:
        used = asyncio.run(drive(target, report, arguments))
    show(report, used, arguments.json)
    sys.exit(1 if report.wrong or used else 0)


def show(report: Report, used: float, as_json: bool) -> None:
    first, last = report.samples[len(report.samples) // 2][1], report.samples[-1][1]
    figures = {
        "outcomes": dict(sorted(report.outcomes.items())),
        "wrong": report.wrong,
        "memory_mb_at_half": {name: round(mb, 1) for name, mb in first.items()},
        "memory_mb_at_end": {name: round(mb, 1) for name, mb in last.items()},
        "memory_slope_mb_per_hour": report.slopes(),
        "blocks_used_at_end": used,
    }
    for key, seconds in report.latencies.items():
        if len(seconds) > 1:
            cuts = quantiles(seconds, n=100, method="inclusive")
            figures[f"latency_s_{key}"] = {
                "p50": round(cuts[49], 2), "p99": round(cuts[98], 2), "max": round(max(seconds), 2)
            }  # fmt: skip
    if as_json:
        print(json.dumps(figures | {"samples": report.samples}))
        return
    for name, value in figures.items():
        print(f"{name}: {json.dumps(value, indent=2)}")


if __name__ == "__main__":
    main()
