"""How fast cache blocks pass from one process to another, beside what the machine can copy at most.

Run as a program it is one of the two processes.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from queue import Queue
from statistics import median
from threading import Event
from typing import Any

import numpy as np

from headrace.backends.cache import BLOCK_TOKENS
from headrace.bench.namespaces import Host, two_hosts
from headrace.errors import ConfigError
from headrace.worker.transfer.connection import Connection
from headrace.worker.transfer.listener import Listener, connect

TRANSPORTS = {"shm": "unix:", "tcp": "tcp:{host}:0", "nixl": "nixl:{host}:0"}
BLOCK_BYTES = 360 << 10
"""A block of smollm2-135m's float16 cache."""
_CHUNK_BLOCKS = 32
"""In a frame: what a prefill of 512 tokens fills."""
_ROUNDS = 3
_HERE = Host((), "127.0.0.1")
_IPERF_PORT, _IPERF_SECONDS = 5201, 2


def run(
    transport: str,
    *,
    tokens: int = 2000,
    block_bytes: int = BLOCK_BYTES,
    repeats: int = 10,
    namespaces: bool = False,
) -> dict[str, float | int | str]:
    """Hand a prefix's blocks over `repeats` times in each of 3 rounds, in turn with what it is compared to.

    With `namespaces` the two processes are in network namespaces of their own, and iperf3 runs between these.

    Returns:
        blocks, block_bytes: of the prefix.
        gb_per_s: from the first byte's sending until the receiver says that it has verified all; median, 1e9.
        memcpy_gb_per_s: a copy of the same blocks within the sender; median.
        of_memcpy: median of the ratios of neighbouring measurements.
        iperf3_gb_per_s, of_iperf3: likewise, by rounds, with `namespaces`.
    """
    if namespaces and shutil.which("iperf3") is None:
        raise ConfigError("--namespaces: iperf3 is not installed (package iperf3)")
    blocks = -(-tokens // BLOCK_TOKENS)
    rounds: list[dict[str, list[float]]] = []
    network: list[float] = []
    with two_hosts() if namespaces else nullcontext((_HERE, _HERE)) as (sender, receiver):
        for _ in range(_ROUNDS):
            rounds.append(_round(transport, sender, receiver, blocks, block_bytes, repeats))
            if namespaces:
                network.append(_iperf3(sender, receiver))
    handoff, memcpy = ([rate for one in rounds for rate in one[name]] for name in ("handoff", "memcpy"))
    result: dict[str, float | int | str] = {
        "transport": transport,
        "blocks": blocks,
        "block_bytes": block_bytes,
        "gb_per_s": round(median(handoff), 2),
        "memcpy_gb_per_s": round(median(memcpy), 2),
        "of_memcpy": round(median(a / b for a, b in zip(handoff, memcpy, strict=True)), 3),
    }
    if network:
        result["iperf3_gb_per_s"] = round(median(network), 2)
        ratios = [median(one["handoff"]) / rate for one, rate in zip(rounds, network, strict=True)]
        result["of_iperf3"] = round(median(ratios), 3)
    return result


def _round(
    transport: str, sender: Host, receiver: Host, blocks: int, block_bytes: int, repeats: int
) -> dict[str, list[float]]:
    """GB/s of each repetition."""
    address = TRANSPORTS[transport].format(host=sender.address)
    program = (sys.executable, "-m", "headrace.bench.handoff")
    sizes = (str(blocks), str(block_bytes), str(repeats))
    secret = secrets.token_hex(16)
    with subprocess.Popen(
        [*sender.command, *program, "send", address, *sizes],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as sending:
        assert sending.stdin is not None and sending.stdout is not None
        sending.stdin.write(secret + "\n")
        sending.stdin.close()
        told = _told(sending.stdout)
        receiving = [*receiver.command, *program, "receive", told["address"], *sizes]
        subprocess.run(receiving, text=True, input=secret + "\n", stdout=subprocess.DEVNULL, check=True)
        return _told(sending.stdout)


def _told(lines: Any) -> dict[str, Any]:
    """The next line that is one of ours: libraries print on standard output, too."""
    for line in lines:
        if line.startswith("{"):
            told: dict[str, Any] = json.loads(line)
            return told
    raise ConfigError("handoff: the sending process ended early; its reason is above")


def _iperf3(sender: Host, receiver: Host) -> float:
    """GB/s of one TCP stream from one host to the other."""
    serve = [*receiver.command, "iperf3", "--server", "--one-off", "--port", str(_IPERF_PORT)]
    with subprocess.Popen(serve, stdout=subprocess.DEVNULL) as server:
        time.sleep(0.3)
        client = ["iperf3", "--client", receiver.address, "--port", str(_IPERF_PORT), "--json"]
        client += ["--time", str(_IPERF_SECONDS)]
        try:
            done = subprocess.run([*sender.command, *client], capture_output=True, text=True, check=True)
        finally:
            server.terminate()
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 8e9


def _pool(blocks: int, block_bytes: int, fill: int) -> list[memoryview]:
    """Blocks whose pages are there, as a cache's in use are."""
    pool = np.full((blocks, block_bytes), fill, np.uint8)
    return [block.data for block in pool]


def _chunks(blocks: list[memoryview]) -> list[list[memoryview]]:
    return [blocks[i : i + _CHUNK_BLOCKS] for i in range(0, len(blocks), _CHUNK_BLOCKS)]


def _send(address: str, secret: bytes, blocks: int, block_bytes: int, repeats: int) -> None:
    """Prints the address, then the rates."""
    accepted: Queue[Connection] = Queue()
    done = Event()

    def hand_out(connection: Connection) -> None:
        accepted.put(connection)
        done.wait()

    listener = Listener(address, hand_out, secret=secret)
    print(json.dumps({"address": listener.address}), flush=True)
    source, copy = _pool(blocks, block_bytes, 1), _pool(blocks, block_bytes, 2)
    connection = accepted.get()
    rates: dict[str, list[float]] = {"handoff": [], "memcpy": []}
    for _ in range(1 + repeats):  # the first is not counted: it maps the ring's pages
        start = time.perf_counter()
        for chunk in _chunks(source):
            connection.send(b"", chunk)
        connection.receive()
        handed = time.perf_counter()
        for ours, target in zip(source, copy, strict=True):
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(ours, np.uint8))
        copied = time.perf_counter()
        for name, seconds in (("handoff", handed - start), ("memcpy", copied - handed)):
            rates[name].append(blocks * block_bytes / seconds / 1e9)
    print(json.dumps({name: values[1:] for name, values in rates.items()}), flush=True)
    done.set()
    listener.close()


def _receive(address: str, secret: bytes, blocks: int, block_bytes: int, repeats: int) -> None:
    target = _pool(blocks, block_bytes, 3)
    with connect(address, secret=secret) as connection:
        for _ in range(1 + repeats):
            for chunk in _chunks(target):
                connection.receive()
                connection.receive_blocks(chunk)
            connection.send(b"verified")


def _main(end: str, address: str, *sizes: str) -> None:
    secret = sys.stdin.readline().strip().encode()
    blocks, block_bytes, repeats = map(int, sizes)
    {"send": _send, "receive": _receive}[end](address, secret, blocks, block_bytes, repeats)


if __name__ == "__main__":
    _main(*sys.argv[1:])
