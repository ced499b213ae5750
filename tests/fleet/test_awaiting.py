"""A server without workers of its own, before the first one joins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.joining import BEAT, ENGINE, joining
from headrace.worker.secret import new_secret
from ports import free_port
from system.test_serve import eventually

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

CHAT = {"model": "synthetic", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(new_secret() + "\n")
    return file


class Server:
    """A gateway that waits."""

    def __init__(self, model: Path, secret: Path, *options: str):
        self.joined_at = f"127.0.0.1:{free_port()}"
        self.url = f"http://127.0.0.1:{free_port()}"
        port = "--port", self.url.rpartition(":")[2]
        workers = "--replicas", "0", "--listen-workers", self.joined_at, "--secret-file", str(secret)
        kept = {n: v for n, v in os.environ.items() if n == "HEADRACE_HOME" or not n.startswith("HEADRACE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", "--model", str(model), *port, *workers, *options],
            env=kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stderr=subprocess.PIPE,
            text=True,
            cwd=secret.parent,
        )
        eventually(self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        with suppress(httpx.TransportError):
            return self.get("/").is_success
        return False

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=10)


@pytest.fixture
def server(synthetic_model: Path, secret: Path) -> Iterator[Server]:
    server = Server(synthetic_model, secret, "--log-requests", "--worker-heartbeat", str(BEAT), *ENGINE)
    with server.process:
        yield server
        server.process.kill()


def test_it_says_what_it_waits_for_and_is_ready_once_a_worker_is(
    server: Server, secret: Path, synthetic_model: Path
) -> None:
    health = server.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["workers"]) == (503, "waiting", [])
    assert "waits for a worker that joins with the model 'synthetic'" in health.json()["message"]
    assert int(health.headers["retry-after"]) > 0
    for refused in (server.get("/v1/models"), server.post("/v1/chat/completions", CHAT)):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_worker")
        assert int(refused.headers["retry-after"]) > 0
    assert server.post("/v1/messages", CHAT).json()["type"] == "error"
    assert isinstance(server.post("/api/chat", CHAT).json()["error"], str)

    def ready() -> bool:
        with suppress(httpx.TransportError):  # the one moment when a connection is not answered
            told = server.get("/health")
            states = {worker["name"]: worker["state"] for worker in told.json()["workers"]}
            return told.is_success and states == {"anna": "ready"}
        return False

    with joining(server.joined_at, secret, synthetic_model, "anna"):
        eventually(ready)
        assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["synthetic"]
        assert server.post("/v1/chat/completions", CHAT).json()["usage"]["completion_tokens"] > 0
    server.process.kill()
    told = server.process.communicate()[1]
    assert "waiting for a worker that joins with synthetic\n" in told
    assert " /v1/chat/completions 503 " in told


def test_it_ends_by_ctrl_c_while_it_waits(server: Server) -> None:
    server.process.send_signal(signal.SIGINT)
    told = server.process.communicate(timeout=20)[1]
    assert "Traceback" not in told, told
