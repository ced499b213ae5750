"""What routing adds to the time to first token: through this gateway, and through LiteLLM's proxy.

    make route-overhead ARGS="--rounds 60 --json"

A Headrace with one small model is asked directly; through a second Headrace that only routes, by a policy
that chooses between two names of that model; and through LiteLLM's proxy, which balances over two deployments
of it. A third Headrace routes between two models of its own. All run on the same two cores. The same streamed
request goes to each in turn, a few times, round after round; its prompt is in every cache, so that the model
itself takes a few milliseconds to the first token, and what lies before it shows.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from side_by_side.command import on_two_cores
from side_by_side.litellm import LiteLlm
from side_by_side.ours import HEADRACE
from side_by_side.process import PeerError, free_port, serving

Floats = NDArray[np.float64]

MODEL = "smollm2-135m"
START_SECONDS = 300.0
RESAMPLES = 2000
PAUSE_SECONDS = 0.005
"""Between two requests: what is left to do after an answer is done by then."""
LONGEST_MS, MOST_OF_PEER = 2.0, 0.1
"""What the gateway may add at the median, and as a share of what LiteLLM's proxy adds."""
PROMPT = (
    "A train leaves the station at nine and goes sixty kilometres an hour. Another one leaves at ten, from "
    "the same place, and goes ninety. When does the second train overtake the first, and how far from the "
    "station is that? Explain in one sentence."
)
DIRECT, GATEWAY, PEER, LOCAL, NAMED = "direct", "gateway", "litellm", "local auto", "local by name"


@dataclass(frozen=True)
class Way:
    """One way to the model: a server, and the name that is asked for there."""

    name: str
    url: str
    model: str


class Client:
    """One connection that stays open, which sends one request after another."""

    def __init__(self, way: Way, tokens: int):
        self.way = way
        parts = urlsplit(way.url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        asked = {
            "model": way.model,
            "messages": [{"role": "user", "content": PROMPT}],
            "stream": True,
            "temperature": 0,
            "max_tokens": tokens,
        }
        self._body = json.dumps(asked).encode()

    def ask(self) -> float:
        """Milliseconds from the request's first byte to the first text. Raises PeerError."""
        began = time.perf_counter()
        self._connection.request(
            "POST", "/v1/chat/completions", self._body, {"content-type": "application/json"}
        )
        response = self._connection.getresponse()
        came: list[tuple[float, bytes]] = []
        while chunk := response.read1():
            came.append((time.perf_counter(), chunk))
        if response.status != 200:
            raise PeerError(f"{self.way.name}: status {response.status}: {came[0][1][:200]!r}")
        return 1000 * (self._first_text(came) - began)

    def _first_text(self, came: Sequence[tuple[float, bytes]]) -> float:
        """When the first event was whole that holds some of the answer."""
        rest = b""
        for at, chunk in came:
            *events, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                if event.startswith(b"data: {"):
                    choices = json.loads(event[6:]).get("choices")
                    if choices and choices[0]["delta"].get("content"):
                        return at
        raise PeerError(f"{self.way.name}: an answer without text")

    def close(self) -> None:
        self._connection.close()


def main() -> None:
    on_two_cores("route-overhead", parse_arguments(), run, table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what routing adds to the time to first token.")
    parser.add_argument("--rounds", type=int, default=40, help="in each, every way has its turn")
    parser.add_argument("--together", type=int, default=10, help="requests of a turn, one after another")
    parser.add_argument("--warm-up", type=int, default=4, help="rounds before those that count")
    parser.add_argument("--tokens", type=int, default=4, help="of each answer")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything. Raises PeerError."""
    peer = LiteLlm()
    version = peer.prepare()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, ways(Path(folder), peer) as found:
        times = measure(found, arguments)
    return {
        "litellm_version": version,
        "load_before": round(load, 2),
        "requests": arguments.rounds * arguments.together,
        "ttft_ms": {name: spread(values) for name, values in times.items()},
        **compared(times),
    }


@contextlib.contextmanager
def ways(folder: Path, peer: LiteLlm) -> Iterator[list[Way]]:
    """All servers, ready."""
    with contextlib.ExitStack() as stack:
        model = ["--model", MODEL, "--threads", "1"]
        upstream = stack.enter_context(headrace("overhead-upstream", folder, model))
        remote = {"url": f"{upstream}/v1", "upstream": MODEL, "input_price": 1.0, "output_price": 4.0}
        remotes = {"one": remote, "other": {**remote, "output_price": 8.0}}
        gateway = stack.enter_context(headrace("overhead-gateway", folder, [], remotes))
        tiers = {n: {"source": MODEL, "cost_per_hour": cost} for n, cost in (("small", 1.0), ("other", 3.0))}
        local = stack.enter_context(headrace("overhead-local", folder, ["--threads", "1"], tiers))
        proxy = stack.enter_context(peer.before(upstream, MODEL, ["auto", "auto"], folder))
        yield [
            Way(DIRECT, upstream, MODEL),
            Way(GATEWAY, gateway, "auto"),
            Way(PEER, proxy, "auto"),
            Way(LOCAL, local, "auto"),
            Way(NAMED, local, "small"),
        ]


@contextlib.contextmanager
def headrace(
    name: str, folder: Path, options: Sequence[str], models: dict[str, Any] | None = None
) -> Iterator[str]:
    """A server of ours with these models in its file, ready."""
    port, file = free_port(), folder / f"{name}.toml"
    tables = [toml(f"models.{each}", fields) for each, fields in (models or {}).items()]
    # What is scored in the shadow would share the upstream's one thread with the requests that are timed.
    file.write_text("".join([*tables, toml("routing", {"shadow": 0.0})]), encoding="utf-8")
    command = [*HEADRACE, "--config", file, "serve", "--port", str(port), *options]
    command += ["--data-dir", folder / name, "--cache-tokens", "8192"]
    with serving(command, name, port, START_SECONDS) as url:
        yield url


def toml(name: str, fields: dict[str, Any]) -> str:
    """One table."""
    return f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())


def measure(found: Sequence[Way], arguments: argparse.Namespace) -> dict[str, Floats]:
    """Milliseconds to the first text of each way, shape (rounds, requests of each round).

    A few requests follow each other on each way, as under a steady load: of a process that has slept while
    four others worked, the processor's caches hold nothing.
    """
    clients = [Client(way, arguments.tokens) for way in found]
    times: dict[str, list[list[float]]] = {way.name: [] for way in found}
    for number in range(-arguments.warm_up, arguments.rounds):
        # Nobody always follows the same one, whose end may still keep a core busy.
        first = number % len(clients)
        for client in (*clients[first:], *clients[:first]):
            took = []
            for _ in range(arguments.together):
                took.append(client.ask())
                time.sleep(PAUSE_SECONDS)
            if number >= 0:
                times[client.way.name].append(took)
    for client in clients:
        client.close()
    return {name: np.array(values) for name, values in times.items()}


def spread(values: Floats) -> dict[str, float]:
    """What is told of one way's times."""
    return {
        "p50": round(float(np.median(values)), 2),
        "p95": round(float(np.percentile(values, 95)), 2),
    }


def compared(times: dict[str, Floats]) -> dict[str, Any]:
    """What each way adds at the median, with 95% intervals from resampled rounds, and how that compares."""
    draw = np.random.default_rng(0)
    count = len(times[DIRECT])
    rows = draw.integers(count, size=(RESAMPLES, count))
    resampled = {name: np.median(values[rows], axis=(1, 2)) for name, values in times.items()}
    middle = {name: float(np.median(values)) for name, values in times.items()}
    pairs = {"gateway": (GATEWAY, DIRECT), "litellm": (PEER, DIRECT), "local auto": (LOCAL, NAMED)}
    pairs |= {"local auto, to direct": (LOCAL, DIRECT)}
    added: dict[str, dict[str, Any]] = {
        name: {
            "p50": round(middle[way] - middle[base], 2),
            "interval": interval(resampled[way] - resampled[base]),
        }
        for name, (way, base) in pairs.items()
    }
    ratio = (middle[GATEWAY] - middle[DIRECT]) / (middle[PEER] - middle[DIRECT])
    ratios = (resampled[GATEWAY] - resampled[DIRECT]) / (resampled[PEER] - resampled[DIRECT])
    return {
        "added_ms": added,
        "gateway_to_litellm": {"ratio": round(ratio, 3), "interval": interval(ratios)},
        "kept": {
            f"at most {LONGEST_MS:g} ms": added["gateway"]["p50"] <= LONGEST_MS,
            f"at most {MOST_OF_PEER:g} of LiteLLM's": ratio <= MOST_OF_PEER,
        },
    }


def interval(values: Floats) -> list[float]:
    """The middle 95%."""
    return [round(float(each), 3) for each in np.percentile(values, (2.5, 97.5))]


def table(report: dict[str, Any]) -> Iterator[str]:
    """For people."""
    yield f"{'':24}{'TTFT p50':>10}{'p95':>10}   ms"
    for name, figures in report["ttft_ms"].items():
        yield f"{name:24}{figures['p50']:10.2f}{figures['p95']:10.2f}"
    yield f"{'':24}{'added p50':>10}"
    for name, figures in report["added_ms"].items():
        low, high = figures["interval"]
        yield f"{name:24}{figures['p50']:10.2f}   ({low:.2f} to {high:.2f})"
    ratio = report["gateway_to_litellm"]
    low, high = ratio["interval"]
    yield f"{'gateway / litellm':24}{ratio['ratio']:10.3f}   ({low:.3f} to {high:.3f})"
    for limit, kept in report["kept"].items():
        yield f"{limit}: {'kept' if kept else 'NOT KEPT'}"


if __name__ == "__main__":
    main()
