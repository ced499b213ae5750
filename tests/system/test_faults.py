"""What bad clients and a killed worker do to a real server on a real model: nothing that lasts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

CLIENTS = 100
QUESTION = [{"role": "user", "content": "Tell me about rivers."}]


class Server:
    """A running `headrace serve`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address = (httpx.URL(url).host, httpx.URL(url).port or 80)

    def body(self, **fields: Any) -> dict[str, Any]:
        asked = {"model": "smollm2-135m", "messages": QUESTION, "max_tokens": 8, "temperature": 0}
        return asked | {"ignore_eos": True} | fields

    def request(self, **fields: Any) -> bytes:
        """A request as it goes over the wire."""
        body = json.dumps(self.body(**fields)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def chat(self) -> str:
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=self.body(), timeout=30)
        assert answer.status_code == 200, answer.text
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content

    def health(self) -> tuple[int, dict[str, Any]]:
        answer = httpx.get(f"{self.url}/health", timeout=10)
        return answer.status_code, answer.json()

    def worker(self) -> dict[str, Any]:
        replicas: list[dict[str, Any]] = self.health()[1]["workers"]
        return replicas[0]

    def gauge(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name}{{")).rsplit(" ", 1)[1])

    def is_idle(self) -> bool:
        gauges = ("headrace_cache_blocks_used", "headrace_running_requests", "headrace_queue_requests")
        return all(self.gauge(name) == 0 for name in gauges)


@pytest.fixture(scope="module")
def server(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model_path("smollm2-135m")
    folder = tmp_path_factory.mktemp("faults")
    kept = (name for name in os.environ if not name.startswith("HEADRACE_") or name == "HEADRACE_HOME")
    environment = {name: os.environ[name] for name in kept}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "headrace", "serve", "--model", "smollm2-135m", "--port", "0"]
    command += ["--cache-tokens", "16384", "--data-dir", str(folder)]
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=environment, cwd=folder)
    try:
        while not (found := re.search(r"http://[\w.:]+", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield Server(found[0])
    finally:
        process.kill()
        process.wait()


def eventually(check: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def test_clients_that_vanish_in_a_stream_leave_nothing_behind(server: Server) -> None:
    before = server.chat()

    async def vanish() -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(server.request(stream=True, max_tokens=1000))
        assert b" 200 " in await reader.readline()
        await reader.readuntil(b"data: ")
        writer.transport.abort()

    async def all_of_them() -> None:
        await asyncio.gather(*(vanish() for _ in range(CLIENTS)))

    asyncio.run(all_of_them())
    eventually(server.is_idle)
    assert server.chat() == before


def test_clients_that_read_a_byte_a_second_hold_up_nobody(server: Server) -> None:
    connections = []
    try:
        for _ in range(CLIENTS):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.connect(server.address)
            connection.sendall(server.request(stream=True, max_tokens=32))
            connections.append(connection)
        for _ in range(3):
            assert all(len(connection.recv(1)) == 1 for connection in connections)
            time.sleep(1)
        begun = time.monotonic()
        server.chat()
        assert time.monotonic() - begun < 10
        eventually(server.is_idle)  # although most of what was computed is still unread
    finally:
        for connection in connections:
            connection.close()
    server.chat()


def test_half_open_connections_hold_up_nobody(server: Server) -> None:
    request = server.request()
    connections = [socket.create_connection(server.address) for _ in range(CLIENTS)]
    try:
        for number, connection in enumerate(connections):
            connection.sendall(request[: number * len(request) // CLIENTS])
        for connection in connections[::3]:
            connection.shutdown(socket.SHUT_WR)
        server.chat()
        assert server.health()[0] == 200
    finally:
        for connection in connections:
            connection.close()
    eventually(server.is_idle)


def test_streams_outlive_a_worker_killed_under_load(server: Server) -> None:
    before, killed = server.chat(), server.worker()
    ends: list[str] = []

    def ask() -> None:
        body = server.body(stream=True, max_tokens=500)
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=30) as answer:
            ends.append([line for line in answer.iter_lines() if line][-1])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: server.gauge("headrace_running_requests") == len(threads))
    os.kill(killed["pid"], signal.SIGKILL)
    eventually(lambda: server.health()[1]["status"] == "unavailable")
    for thread in threads:
        thread.join(30)
    assert len(ends) == len(threads)
    assert set(ends) == {"data: [DONE]"}
    eventually(lambda: server.health()[1]["status"] == "ok")
    assert server.worker()["restarts"] == killed["restarts"] + 1
    assert server.worker()["pid"] != killed["pid"]
    assert server.chat() == before
    eventually(server.is_idle)
