"""A server whose workers Ray runs, on one machine: loss of an actor and of a node, up and down, and the end.

Run by `make test-ray`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Semaphore

import httpx
import pytest

from headrace.worker.secret import new_secret
from system.test_serve import Server, eventually, serving

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
pytest.importorskip("ray", reason="Ray is not installed; `make test-ray` installs it")

SCALING = ("--max-workers", "2", "--worker-load", "4", "--scale-down-seconds", "3")
PATIENCE = 60.0
"""Seconds for Ray to start processes, on a machine that has other work."""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where Ray keeps sockets and logs: of a short path, for a socket's may have 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hr", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(new_secret())
    return file


def on_ray(address: str, secret: Path) -> tuple[str, ...]:
    return ("--cluster", "ray", "--ray-address", address, "--secret-file", str(secret))


def ready(server: Server) -> list[int]:
    """The processes of the workers that take requests."""
    return [worker["pid"] for worker in server.health()["workers"] if worker["state"] == "ready"]


def streamed(server: Server, seed: int, tokens: int = 1500, begun: Semaphore | None = None) -> str:
    """The text of a sampled answer; `begun` is released when there is some of it."""
    body = {"model": "synthetic", "prompt": f"hello world {seed}", "seed": seed, "temperature": 1.0}
    body |= {"max_tokens": tokens, "ignore_eos": True, "stream": True}
    pieces = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                pieces += [choice["text"] for choice in event["choices"]]
                if begun is not None and len(pieces) == 20:
                    begun.release()
    return "".join(pieces)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descendants(root: int) -> set[int]:
    """The processes that come from it, and are still there."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = parent(int(entry.name))
            except OSError:
                continue  # it has ended
    found, more = set[int](), {root}
    while more:
        found |= more
        more = {pid for pid, its in parents.items() if its in found} - found
    return found - {root}


def shown(pid: int) -> bytes:
    """What everybody, or the same user, can read of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_ray_replaces_an_actor_scales_and_leaves_nothing(
    synthetic_model: Path, secret: Path, folder: Path
) -> None:
    with serving(synthetic_model) as plain:
        alone = [streamed(plain, seed) for seed in range(4)]
    with (
        serving(synthetic_model, *on_ray("local", secret), *SCALING) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        (worker,) = ready(server)
        begun = Semaphore(0)
        asked = [pool.submit(streamed, server, seed, begun=begun) for seed in range(4)]
        assert begun.acquire(timeout=PATIENCE)
        assert not any(answer.done() for answer in asked)
        os.kill(parent(worker), signal.SIGKILL)
        assert [answer.result() for answer in asked] == alone
        assert worker not in ready(server)

        with steady_load(server):
            eventually(lambda: len(ready(server)) == 2, PATIENCE)
        processes = descendants(server.process.pid)
        assert not any(secret.read_bytes() in shown(pid) for pid in processes)
        eventually(lambda: len(ready(server)) == 1, PATIENCE)
        assert streamed(server, 0) == alone[0]

        processes |= descendants(server.process.pid)
        server.process.terminate()
        assert server.process.wait(30) == 0
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))
    logs = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert logs, "the folder is not the one that Ray uses"
    assert not any(secret.read_bytes() in log for log in logs)


def test_workers_of_a_node_that_dies_are_placed_on_another(
    synthetic_model: Path, secret: Path, folder: Path
) -> None:
    from ray.cluster_utils import Cluster

    with serving(synthetic_model) as plain:
        alone = streamed(plain, 1)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        with serving(synthetic_model, *on_ray(cluster.address, secret)) as server:
            (worker,) = ready(server)
            raylet = parent(parent(worker))
            (node,) = (node for node in nodes if is_raylet_of(node, raylet))
            cluster.remove_node(node, allow_graceful=False)
            assert streamed(server, 1) == alone
            assert worker not in ready(server)
    finally:
        cluster.shutdown()


def is_raylet_of(node: object, pid: int) -> bool:
    processes = node.all_processes  # type: ignore[attr-defined]
    return any(info.process.pid == pid for info in processes["raylet"])


def test_where_there_is_no_cluster_that_is_said(synthetic_model: Path, secret: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"no Ray cluster at '127.0.0.1:1'"),
        serving(synthetic_model, *on_ray("127.0.0.1:1", secret)),
    ):
        pass


@contextmanager
def steady_load(server: Server) -> Iterator[None]:
    """Eight requests at a time while the block runs. Raises what went wrong with one of them."""
    wanted = Event()
    wanted.set()

    def ask(seed: int) -> None:
        while wanted.is_set():
            streamed(server, seed)

    with ThreadPoolExecutor(8) as pool:
        askers = [pool.submit(ask, seed) for seed in range(8)]
        try:
            yield
        finally:
            wanted.clear()
    for asker in askers:
        asker.result()
