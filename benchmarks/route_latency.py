"""Whether a first token that is asked for in time comes in time while the cheap tier is flooded.

    make route-latency ARGS="--seconds 60 --json"

A Headrace with two tiers of one small model, a thread each, that share their estimate of quality: a cheap
one, and one three times as dear. Patient requests, without a limit, keep the cheap tier full, and wait before
it; impatient ones, which ask for a first token within a time that the cheap tier then cannot keep, come
between them, about one a second. What was predicted of both is read from the file that the server keeps.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import uvloop

from side_by_side.command import on_two_cores
from side_by_side.ours import HEADRACE
from side_by_side.process import PeerError, free_port, serving

MODEL = "smollm2-135m"
START_SECONDS = 300.0
SHARE, WITHIN = 0.95, 0.25
"""Of impatient requests that are to keep their limit; how far predictions may be off at the median."""
WORDS = ["river", "stone", "light", "water", "mill", "wheel", "gate", "field", "cloud", "bread", "letter"]
CHEAP, DEAR = "cheap", "quick"


@dataclass(frozen=True)
class Asked:
    """One request, as its client saw it."""

    answer: str
    """Its id."""
    impatient: bool
    model: str
    began: float
    first_token: float
    """Seconds."""


def main() -> None:
    on_two_cores("route-latency", parse_arguments(), run, table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure whether latency that is asked for is kept.")
    parser.add_argument("--seconds", type=float, default=60, help="that count")
    parser.add_argument("--warm-up", type=float, default=20, help="seconds of the same before")
    parser.add_argument("--flood", type=int, default=24, help="patient requests at a time")
    parser.add_argument(
        "--max-running", type=int, default=16, help="sequences that a tier computes at a time"
    )
    parser.add_argument("--rate", type=float, default=1.5, help="impatient requests a second")
    parser.add_argument("--limit-ms", type=float, default=400, help="that the impatient ask for")
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything. Raises PeerError."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        with headrace(Path(folder), arguments.max_running) as url:
            asked = uvloop.run(drive(url, arguments))
        predicted = predictions(Path(folder) / "routing.sqlite")
    return {
        "load_before": round(load, 2),
        "limit_ms": arguments.limit_ms,
        **figures(asked, predicted, arguments.limit_ms / 1000),
    }


@contextlib.contextmanager
def headrace(folder: Path, max_running: int) -> Iterator[str]:
    """A server with two tiers, ready."""
    port, file = free_port(), folder / "headrace.toml"
    file.write_text(
        f'[models.{CHEAP}]\nsource = "{MODEL}"\nestimate_as = "{MODEL}"\ncost_per_hour = 1.0\n'
        f'[models.{DEAR}]\nsource = "{MODEL}"\nestimate_as = "{MODEL}"\ncost_per_hour = 3.0\n'
        f'[routing]\ndatabase = "{folder / "routing.sqlite"}"\n',
        encoding="utf-8",
    )
    command = [*HEADRACE, "--config", file, "serve", "--port", str(port), "--threads", "1"]
    command += ["--data-dir", folder / "data", "--cache-tokens", "16384", "--max-running", str(max_running)]
    with serving(command, "route-latency", port, START_SECONDS) as url:
        yield url


async def drive(url: str, arguments: argparse.Namespace) -> list[Asked]:
    """Patient and impatient requests, for as long as is asked; those that count."""
    draw = random.Random(0)
    start = time.monotonic() + arguments.warm_up
    end = start + arguments.seconds
    asked: list[Asked] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector) as session:

        async def flood() -> None:
            while time.monotonic() < end:
                prompt = text(draw, arguments.prompt_tokens)
                asked.append(await ask(session, prompt, draw.randint(64, 128), None))

        async def hurry(prompt: str) -> None:
            asked.append(await ask(session, prompt, 16, arguments.limit_ms))

        async def arrive() -> None:
            running = []
            while (now := time.monotonic()) < end:
                if now > start - arguments.warm_up / 2:
                    running.append(asyncio.create_task(hurry(text(draw, arguments.prompt_tokens // 4))))
                await asyncio.sleep(draw.expovariate(arguments.rate))
            await asyncio.gather(*running)

        await asyncio.gather(arrive(), *(flood() for _ in range(arguments.flood)))
    return [each for each in asked if start <= each.began < end]


async def ask(session: aiohttp.ClientSession, prompt: str, tokens: int, limit_ms: float | None) -> Asked:
    """One streamed request to the end. Raises PeerError."""
    headers = {} if limit_ms is None else {"x-headrace-max-first-token-ms": f"{limit_ms:g}"}
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    began, first, answer = time.monotonic(), 0.0, ""
    async with session.post("/v1/chat/completions", json=body, headers=headers) as response:
        if response.status != 200:
            raise PeerError(f"status {response.status}: {(await response.text())[:200]}")
        async for line in response.content:
            if first or not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            answer = event["id"]
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                first = time.monotonic()
        model = response.headers["x-headrace-model"]
    return Asked(answer, limit_ms is not None, model, began, first - began)


def text(draw: random.Random, words: int) -> str:
    """About as many tokens as words, and like no other."""
    return "Continue: " + " ".join(draw.choice(WORDS) for _ in range(words))


def predictions(database: Path) -> dict[str, float]:
    """Seconds to the first token that were predicted, by answer; the server has ended by now."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT answer, predicted_first_token FROM decisions WHERE predicted_first_token IS NOT NULL"
        )
        return dict(rows.fetchall())


def figures(asked: Sequence[Asked], predicted: dict[str, float], limit: float) -> dict[str, Any]:
    """What is told of both kinds of requests."""
    groups = {
        "impatient": [each for each in asked if each.impatient],
        "patient": [each for each in asked if not each.impatient],
    }
    told: dict[str, Any] = {name: group(each, predicted) for name, each in groups.items()}
    kept = [each.first_token <= limit for each in groups["impatient"]]
    told["impatient"]["kept"] = round(sum(kept) / len(kept), 3)
    away = told["patient"]["tiers"].get(CHEAP, 0) / len(groups["patient"])
    told["patient"]["share_on_cheap"] = round(away, 3)
    errors = [told[name]["median_error"] for name in groups]
    told["held"] = {
        f"{SHARE:.0%} of the impatient keep the limit": told["impatient"]["kept"] >= SHARE,
        "the patient stay cheap": away >= SHARE,
        f"predictions within {WITHIN:.0%} at the median": max(errors) <= WITHIN,
    }
    return told


def group(asked: Sequence[Asked], predicted: dict[str, float]) -> dict[str, Any]:
    """Of one kind. `predicted_off`: by what part of itself the predicted time is too short, at the median;
    `median_error`: by what part of the measured one it is off, in either direction."""
    if not asked:
        raise PeerError("too few requests: ask for more seconds")
    known = [each for each in asked if predicted.get(each.answer)]
    ratios = [each.first_token / predicted[each.answer] for each in known]
    off = [abs(1 / ratio - 1) for ratio in ratios]
    times = sorted(1000 * each.first_token for each in asked)
    return {
        "requests": len(asked),
        "tiers": dict(Counter(each.model for each in asked)),
        "ttft_ms": {"p50": round(median(times), 1), "p95": round(times[int(0.95 * (len(times) - 1))], 1)},
        "predicted_ms_p50": round(1000 * median(predicted[each.answer] for each in known), 1),
        "predicted_off": round(median(ratios) - 1, 3),
        "median_error": round(median(off), 3),
    }


def table(report: dict[str, Any]) -> Iterator[str]:
    """For people."""
    yield f"{'':12}{'requests':>10}{'TTFT p50':>10}{'p95':>10}{'predicted':>11}{'off':>8}{'error':>8}   tiers"
    for name in ("impatient", "patient"):
        each = report[name]
        times = (
            f"{each['ttft_ms']['p50']:10.1f}{each['ttft_ms']['p95']:10.1f}{each['predicted_ms_p50']:11.1f}"
        )
        off = f"{each['predicted_off']:8.1%}{each['median_error']:8.1%}"
        yield f"{name:12}{each['requests']:10}{times}{off}   {each['tiers']}"
    yield f"{report['impatient']['kept']:.1%} of the impatient had their first token within the limit"
    for claim, held in report["held"].items():
        yield f"{claim}: {'yes' if held else 'NO'}"


if __name__ == "__main__":
    main()
