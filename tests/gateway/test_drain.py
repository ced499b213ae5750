"""A server that is told to end: it finishes what runs, refuses what is new, and says so."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gateway.fake_engine import ANSWER
from headrace.errors import ConfigError
from headrace.gateway.server import listen

TESTS = Path(__file__).parents[1]


@contextmanager
def serving(drain_seconds: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its URL."""
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "gateway" / "serve_fake.py"), "0", str(drain_seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    try:
        assert process.stdout is not None
        yield process, f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def complete(url: str, max_tokens: int, stream: bool = False) -> httpx.Response:
    body = {"model": "fake", "prompt": "Hi", "max_tokens": max_tokens, "stream": stream}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=20)


def begin(
    pool: ThreadPoolExecutor, url: str, max_tokens: int, stream: bool = False
) -> Future[httpx.Response]:
    """A request that runs by the time this returns."""
    request = pool.submit(complete, url, max_tokens, stream)
    while 'time_to_first_token_seconds_count{model="fake"}' not in httpx.get(f"{url}/metrics").text:
        time.sleep(0.01)
    time.sleep(0.05)
    return request


def begin_draining(process: subprocess.Popen[str], url: str, number: signal.Signals) -> None:
    process.send_signal(number)
    deadline = time.monotonic() + 5
    while httpx.get(f"{url}/health").status_code != 503:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_finish_and_new_ones_are_refused(number: signal.Signals) -> None:
    with serving(drain_seconds=10) as (process, url), ThreadPoolExecutor(1) as pool:
        running = begin(pool, url, max_tokens=300)
        begin_draining(process, url, number)
        assert httpx.get(f"{url}/health").json()["status"] == "draining"
        assert process.stdout is not None
        assert process.stdout.readline() == "draining 1\n"
        refused = complete(url, 1)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert len(running.result().json()["choices"][0]["text"]) == 300
        assert process.wait(5) == 0


def test_an_idle_server_ends_at_once() -> None:
    with serving(drain_seconds=10) as (process, url), httpx.Client() as kept_alive:
        assert kept_alive.get(f"{url}/health").status_code == 200
        told = time.monotonic()
        process.terminate()
        assert process.wait(5) == 0
        assert time.monotonic() - told < 2


def test_a_stream_that_does_not_finish_in_time_is_told_why() -> None:
    with serving(drain_seconds=0.3) as (process, url), ThreadPoolExecutor(1) as pool:
        running = begin(pool, url, max_tokens=500, stream=True)
        process.terminate()
        lines = [line for line in running.result().text.splitlines() if line]
        assert json.loads(lines[0][6:])["choices"][0]["text"] == ANSWER[0]
        assert "the server stopped" in json.loads(lines[-1][6:])["error"]["message"]
        assert process.wait(5) == 0


def test_a_second_signal_ends_the_wait() -> None:
    with serving(drain_seconds=60) as (process, url), ThreadPoolExecutor(1) as pool:
        running = begin(pool, url, max_tokens=500)
        begin_draining(process, url, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0
        assert running.result().status_code == 503


def test_an_address_that_cannot_be_had_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} on 127.0.0.1 is in use.*HEADRACE_PORT"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match="--host"):
        listen("host.invalid", 0)
    with listen("127.0.0.1", 0) as first, pytest.raises(ConfigError, match="in use"):
        listen("127.0.0.1", first.getsockname()[1])


def test_a_small_answer_is_not_held_back_for_an_acknowledgement() -> None:
    with serving(drain_seconds=1) as (_, url), httpx.Client() as client:
        seconds = [client.get(f"{url}/health").elapsed.total_seconds() for _ in range(10)]
    assert min(seconds[1:]) < 0.02  # a delayed acknowledgement takes 0.04
