"""What the gateway itself costs: streams and requests through a real one, to workers that answer at once.

    make bench-gateway ARGS="--streams 2000 --seconds 10"

The gateway is `headrace serve` on one core. Its worker is a stand-in (`gateway_worker.py`) that speaks a
worker's messages and computes nothing; that and a client in C (`gateway_client.c`, built here with `cc`)
share another core. What counts is the processor time that the gateway took, its system calls and all its
threads included: that depends far less than a rate on what else the machine does. The rates by the clock are
those that all three reached together.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from headrace import cli
from headrace.fleet import local
from headrace.fleet.process import WorkerProcess
from headrace.worker.settings import Launch
from side_by_side.process import free_port

HERE = Path(__file__).parent
START_SECONDS = 120
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Load:
    """What the client does."""

    mode: Literal["stream", "requests"]
    connections: int
    unit: str
    """What is counted."""
    asked: dict[str, object]
    """In each request, besides the messages."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What was measured of one load."""

    count: int
    """Of the load's units."""
    seconds: float
    user: float
    """Seconds of processor time that the gateway took in its own code."""
    system: float
    """The same for its system calls."""

    def told(self, load: Load) -> str:
        """In words."""
        busy, each = self.user + self.system, 1e6 / self.count
        return (
            f"{load.connections} connections: {self.count / busy:.0f} {load.unit} per CPU second "
            f"of the gateway, {busy * each:.1f} µs each "
            f"({self.user * each:.1f} user, {self.system * each:.1f} system)\n"
            f"  by the clock: {self.count / self.seconds:.0f} a second, "
            f"for which the gateway was busy {busy / self.seconds:.0%} of the time"
        )


def main() -> None:
    if sys.argv[1:2] == ["gateway"]:
        run_gateway(sys.argv[2:4], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description="Measure what the gateway costs.")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer and chat template are used")
    parser.add_argument("--streams", type=int, default=2000, help="open at the same time")
    parser.add_argument("--connections", type=int, default=64, help="for requests that are not streamed")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    arguments = parser.parse_args()
    raise_file_limit(4 * arguments.streams + 1024)
    endless: dict[str, object] = {"stream": True, "max_tokens": 1 << 22}
    loads = [
        Load("stream", arguments.streams, "chunks", endless),
        Load("requests", arguments.connections, "requests", {"max_tokens": 1}),
    ]
    with tempfile.TemporaryDirectory() as folder:
        client, counter = build_client(Path(folder)), Path(folder) / "counter"
        for load in loads:
            with gateway(arguments.model, load, counter) as (pid, port):
                cost = measure(client, load, arguments.model, pid, port, arguments.seconds, counter)
            print(cost.told(load), flush=True)


def build_client(folder: Path) -> Path:
    """Compiles the client."""
    client = folder / "gateway_client"
    subprocess.run(["cc", "-O2", "-o", client, HERE / "gateway_client.c"], check=True)
    return client


@contextlib.contextmanager
def gateway(model: str, load: Load, counter: Path) -> Iterator[tuple[int, int]]:
    """Its process id and its port; ended with the context. The client counts in the file `counter`."""
    port = free_port()
    counter.write_bytes(bytes(8))
    together = str(load.connections if load.mode == "stream" else 1)
    command: list[str | Path] = [sys.executable, __file__, "gateway", counter, together]
    command += ["serve", "--model", model, "--port", str(port), "--max-queue", str(2 * load.connections)]
    command += ["--max-running", str(load.connections), "--max-batch-tokens", str(load.connections)]
    command += ["--drain-seconds", "1"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(process, port)
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(START_SECONDS * 10):
        time.sleep(0.1)
        if process.poll() is not None:
            raise SystemExit(f"gateway-cost: the gateway ended with status {process.returncode}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
            return
    raise SystemExit(f"gateway-cost: the gateway was not ready after {START_SECONDS} s")


def measure(client: Path, load: Load, model: str, pid: int, port: int, seconds: float, counter: Path) -> Cost:
    """Puts the client on the gateway and counts from when all its connections are served."""
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    body = json.dumps({"model": model, "messages": messages, **load.asked})
    command: list[str | Path] = [client, load.mode, "127.0.0.1", str(port), body]
    command += [str(load.connections), str(seconds), counter]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=on_other_core) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "begin\n":
            raise SystemExit("gateway-cost: the client failed")
        before = cpu_seconds(pid)
        words = process.stdout.readline().split()
        after = cpu_seconds(pid)
    if words[:1] != ["end"]:
        raise SystemExit("gateway-cost: the client failed")
    return Cost(int(words[1]), int(words[2]) / 1e6, after[0] - before[0], after[1] - before[1])


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Of all threads of a process so far: in its own code, and in the system's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def raise_file_limit(wanted: int) -> None:
    """For as many connections, here and in what is started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))


def on_other_core() -> None:
    """The last core is the client's and the worker's."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class StandIn(WorkerProcess):
    """The stand-in in a worker's place."""

    command: tuple[str | Path, ...] = ()
    core = 0

    @classmethod
    async def start(cls, launch: Launch) -> WorkerProcess:
        process = await asyncio.create_subprocess_exec(
            *cls.command,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {cls.core}),
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(launch) + b"\n")
        await process.stdin.drain()
        return cls(process)


def run_gateway(told: list[str], arguments: list[str]) -> None:
    """`headrace serve` on the first core, with a stand-in for its worker, told so much, on the last."""
    cores = os.sched_getaffinity(0)
    StandIn.command = (sys.executable, HERE / "gateway_worker.py", *told)
    StandIn.core = max(cores)
    os.sched_setaffinity(0, {min(cores)})
    setattr(local, "WorkerProcess", StandIn)  # noqa: B010
    sys.argv[1:] = arguments
    cli.main()


if __name__ == "__main__":
    main()
