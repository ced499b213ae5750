"""The gap between two tokens of running streams, while long prompts arrive and while none do.

    python benchmarks/tail_latency.py --rounds 2

Eight streams decode all the time; in the loaded half prompts of about 4000 tokens arrive beside them.
Headrace with one prefill and one decode worker of a thread each, one worker of two threads, and llama.cpp's
server, in turn, round after round; the medians are told.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import mean, median, quantiles

import uvloop

from headrace.address import parse_url
from headrace.bench.serve.client import Client, now
from headrace.bench.serve.record import Record
from headrace.bench.serve.target import Target, find
from headrace.bench.serve.workloads import Ask
from side_by_side.llama_cpp import LlamaCpp
from side_by_side.ours import HEADRACE
from side_by_side.process import PeerError, free_port, serving
from side_by_side.work import Load, Run

WORDS = ["river", "stone", "light", "water", "mill", "wheel", "gate", "field", "cloud", "bread", "letter"]
STREAMS = 8
SECONDS = 900.0


@dataclass(frozen=True)
class Figures:
    """Of one phase; times in milliseconds."""

    itl_p50: float
    itl_p99: float
    itl_max: float
    stream_tok_s: float
    prompt_tok_s: float
    ttft: float
    """Mean of the long prompts'; 0 where there are none."""


def main() -> None:
    arguments = parse_arguments()
    found: dict[str, dict[str, list[Figures]]] = {}
    for number, (name, server) in itertools.product(range(arguments.rounds), systems(arguments).items()):
        with server() as url:
            for phase, every in (("quiet", None), ("loaded", arguments.every)):
                figures = uvloop.run(measure(url, every, arguments))
                print(f"round {number}: {name}, {phase}: {figures}", file=sys.stderr)
                found.setdefault(name, {}).setdefault(phase, []).append(figures)
    print(json.dumps(summary(found), indent=2))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Gaps between tokens while long prompts arrive.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="of each phase")
    parser.add_argument("--every", type=float, default=4, help="seconds between two long prompts")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--only", help="name of the one system to measure")
    return parser.parse_args()


def systems(arguments: argparse.Namespace) -> dict[str, Callable[[], AbstractContextManager[str]]]:
    def headrace(*options: str) -> Callable[[], AbstractContextManager[str]]:
        @contextmanager
        def start() -> Iterator[str]:
            port = free_port()
            command = [*HEADRACE, "serve", "--model", arguments.model, "--port", str(port), *options]
            with serving(command, "tail-headrace", port, SECONDS) as url:
                yield url

        return start

    def llama_cpp() -> AbstractContextManager[str]:
        peer = LlamaCpp()
        peer.prepare()
        load = Load(0, STREAMS + 2, arguments.prompt_tokens, 600)
        return peer.serving(arguments.model, load, Run("tail-llama", 2, SECONDS))

    found = {
        "prefill 1, decode 1": headrace("--prefill", "1", "--decode", "1", "--threads", "1"),
        "one worker, 2 threads": headrace("--threads", "2"),
        "llama.cpp, 2 threads": llama_cpp,
    }
    return {name: start for name, start in found.items() if arguments.only in (None, name)}


async def measure(url: str, every: float | None, arguments: argparse.Namespace) -> Figures:
    """Streams for so many seconds; a long prompt each `every` seconds, or none."""
    target = find(parse_url(url), None)
    client = Client(target, SECONDS)
    draw = random.Random(0 if every is None else 1)
    end = now() + arguments.seconds
    streams: list[Record] = []
    prompts: list[Record] = []

    async def stream() -> None:
        while now() < end:
            streams.append(await ask(client, target, text(draw, 30), 400))

    async def arrive() -> None:
        asked = []
        while every is not None and now() < end - every:
            await asyncio.sleep(every)
            asked.append(asyncio.create_task(ask(client, target, text(draw, arguments.prompt_tokens), 2)))
        prompts.extend(await asyncio.gather(*asked))

    await asyncio.gather(arrive(), *(stream() for _ in range(STREAMS)))
    client.close()
    for record in (*streams, *prompts):
        if record.failure is not None:
            raise PeerError(f"{record.failure}: {record.message}")
    gaps = [
        1000 * (after - before)
        for record in streams
        for before, after in itertools.pairwise(record.chunk_times)
        if after < end
    ]
    tokens = sum(time < end for record in streams for time in record.chunk_times)
    return Figures(
        itl_p50=round(median(gaps), 2),
        itl_p99=round(quantiles(gaps, n=100)[98], 2),
        itl_max=round(max(gaps), 1),
        stream_tok_s=round(tokens / arguments.seconds, 1),
        prompt_tok_s=round(sum(record.input_tokens for record in prompts) / arguments.seconds, 1),
        ttft=round(mean([1000 * (r.chunk_times[0] - r.sent) for r in prompts]), 1) if prompts else 0.0,
    )


async def ask(client: Client, target: Target, prompt: str, tokens: int) -> Record:
    """Sent again where the server had closed the connection after the answer before."""
    while True:
        record = Record(tokens, started=now())
        await client.send(target.request(Ask(prompt, tokens)), record)
        if record.failure != "disconnected" or record.chunk_times:
            return record


def text(draw: random.Random, words: int) -> str:
    """About as many tokens as words, and like no other."""
    return " ".join(draw.choice(WORDS) for _ in range(words))


def summary(found: dict[str, dict[str, list[Figures]]]) -> dict[str, object]:
    told: dict[str, object] = {}
    p99: dict[str, float] = {}
    for name, phases in found.items():
        for phase, rounds in phases.items():
            middle = {field: median(getattr(r, field) for r in rounds) for field in Figures.__annotations__}
            told[f"{name}, {phase}"] = middle
            p99[f"{name}, {phase}"] = middle["itl_p99"]
    split = "prefill 1, decode 1"
    if f"{split}, loaded" in p99:
        told["p99 ITL loaded / quiet"] = round(p99[f"{split}, loaded"] / p99[f"{split}, quiet"], 2)
        if (peer := p99.get("llama.cpp, 2 threads, loaded")) is not None:
            told["p99 ITL / llama.cpp's"] = round(p99[f"{split}, loaded"] / peer, 3)
    return told


if __name__ == "__main__":
    main()
