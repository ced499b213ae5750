"""A server's workers, changed under its users' hands: over HTTP, and by `headrace fleet`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

from synthetic import write_synthetic
from system.test_serve import MODEL, Server, eventually, serving


@pytest.fixture
def server(synthetic_model: Path, tmp_path: Path) -> Iterator[Server]:
    model = tmp_path / f"{MODEL}.gguf"
    model.write_bytes(synthetic_model.read_bytes())
    with serving(model, "--replicas", "2") as server:
        yield server


def command(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-m", "headrace", "fleet", *arguments, "--url", server.url],
        capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip


def told(server: Server, *arguments: str) -> Any:
    result = command(server, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def workers(server: Server) -> list[dict[str, Any]]:
    (model,) = httpx.get(f"{server.url}/v1/fleet").raise_for_status().json()["data"]
    return model["workers"]


def test_workers_are_seen_moved_replaced_and_drained_by_the_command_line(server: Server) -> None:
    table = command(server, "status").stdout.splitlines()
    assert len(table) == 3 and "worker-0" in table[1] and "ready" in table[1]
    assert "too little traffic" in command(server, "plan", "--ttft-limit-ms", "9000").stderr
    texts: set[str] = set()
    failures: list[object] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            answer = server.chat(max_tokens=60)
            texts.add(answer.json()["choices"][0]["message"]["content"])
            if answer.status_code != 200:
                failures.append(answer.json())

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    before = {worker["pid"] for worker in workers(server)}
    assert command(server, "restart").stdout == "2 of 2 workers are replaced\n"
    assert not before & {worker["pid"] for worker in workers(server)}
    assert told(server, "role", "worker-2", "prefill")["role"] == "prefill"
    refused = command(server, "role", "worker-3", "prefill")
    assert refused.returncode == 1 and "No other worker is for decode" in refused.stderr
    assert told(server, "role", "worker-2", "both")["role"] == "both"
    assert command(server, "drain", "worker-2").stdout == "worker-2 has ended\n"
    stop.set()
    for client in clients:
        client.join()
    assert not failures and len(texts) == 1
    asked = count()

    def planned() -> bool:
        """The worker that is left has shown what a row costs, once prompts differed enough in length."""
        number = next(asked)
        content = f"{number}" + " the world and the word of" * (number % 2 * 80)
        assert server.chat(messages=[{"role": "user", "content": content}]).status_code == 200
        return command(server, "plan", "--ttft-limit-ms", "9000").returncode == 0

    eventually(planned)
    (plan,) = (model["plan"] for model in told(server, "plan", "--ttft-limit-ms", "9000")["data"])
    assert plan["meets"] and plan["both"] >= 1 and plan["reasons"]
    assert "for 95% of the requests" in command(server, "plan", "--tpot-limit-ms", "900").stdout
    assert "give --ttft-limit-ms" in command(server, "plan").stderr
    assert [worker["name"] for worker in workers(server)] == ["worker-3"]
    assert "only worker that is ready" in command(server, "drain", "worker-3").stderr


def test_a_reload_shows_in_the_answers_fingerprint_and_a_wrong_file_is_refused(
    server: Server, tmp_path: Path
) -> None:
    model = tmp_path / f"{MODEL}.gguf"
    before = server.chat().json()
    (tmp_path / "broken").write_bytes(b"GGUF")
    (tmp_path / "broken").replace(model)
    broken = httpx.post(f"{server.url}/v1/fleet/restart", json={"reload": True}, timeout=30)
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "model_not_loadable")
    assert server.chat().json()["system_fingerprint"] == before["system_fingerprint"]
    write_synthetic(tmp_path / "new.gguf", seed=9).replace(model)
    assert command(server, "restart", "--reload").returncode == 0
    eventually(lambda: server.chat().json()["system_fingerprint"] != before["system_fingerprint"])
    after = server.chat().json()
    assert after["choices"] != before["choices"]
    assert {worker["fingerprint"] for worker in workers(server)} == {after["system_fingerprint"][3:]}
