"""`headrace batch` as users run it, with a worker of its own and with a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.running import running

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

OWN = ("--threads", "1", "--cache-tokens", "8192")


def line(custom_id: str, model: str = "synthetic", **body: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": f"hello {custom_id}", "max_tokens": 8, "ignore_eos": True} | body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def start(requests: Path, results: Path, *options: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "batch", str(requests), str(results), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=requests.parent,
    )


def answer(requests: Path, results: Path, *options: str) -> tuple[int, str]:
    """Exit status and what was said."""
    process = start(requests, results, *options)
    out, told = process.communicate(timeout=120)
    assert out == ""
    return process.returncode, told


def read(results: Path) -> dict[str, Any]:
    lines = [json.loads(each) for each in results.read_text().splitlines()]
    named = {each["custom_id"]: each for each in lines if each["custom_id"] is not None}
    assert len(named) == sum(each["custom_id"] is not None for each in lines)
    return named


def test_every_request_gets_a_line_and_a_wrong_one_an_error(synthetic_model: Path, tmp_path: Path) -> None:
    lines = [line("a"), "nonsense", line("b", stream=True), line("a"), line("c"), line("d", model="other")]
    requests, results = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    status, told = answer(requests, results, "--model", str(synthetic_model), *OWN)
    assert status == 1
    assert "2 requests answered, 4 failed" in told
    assert "16 output tokens" in told
    named = read(results)
    assert named["a"]["response"]["status_code"] == 200
    assert named["a"]["response"]["body"]["usage"]["completion_tokens"] == 8
    assert named["d"]["response"]["status_code"] == 404
    others = [json.loads(each) for each in results.read_text().splitlines()]
    codes = {each["line"]: each["error"]["code"] for each in others if each["custom_id"] is None}
    assert codes == {2: "invalid_json_line", 3: "stream_not_supported", 4: "duplicate_custom_id"}
    before = results.read_bytes()
    status, told = answer(requests, results, "--model", str(synthetic_model), *OWN)
    assert (status, results.read_bytes()) == (1, before)
    assert "nothing to do" in told


def test_a_killed_run_goes_on_where_it_was(synthetic_model: Path, tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", [line(f"r{i}", max_tokens=100) for i in range(60)])
    results = tmp_path / "out.jsonl"
    process = start(requests, results, "--model", str(synthetic_model), "--concurrency", "4", *OWN)
    deadline = time.monotonic() + 60
    while not (results.exists() and results.read_bytes().count(b"\n") >= 5):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    kept = results.read_bytes()
    kept = kept[: kept.rindex(b"\n") + 1]
    assert kept.count(b"\n") < 60
    results.write_bytes(kept + b'{"id":"batch_req_0123","custo')
    status, told = answer(requests, results, "--model", str(synthetic_model), *OWN)
    assert status == 0, told
    assert results.read_bytes().startswith(kept)
    assert read(results).keys() == {f"r{i}" for i in range(60)}
    assert f"{kept.count(10):,} were there already" in told


def test_an_interrupted_run_ends_in_order(tmp_path: Path) -> None:
    with running(step_seconds=0.05) as server:
        requests = write(tmp_path / "in.jsonl", [line(f"r{i}", "fake") for i in range(200)])
        results = tmp_path / "out.jsonl"
        process = start(requests, results, "--url", server.url, "--concurrency", "8")
        deadline = time.monotonic() + 60
        while not (results.exists() and results.read_bytes()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "run the same command again" in told
    assert results.read_bytes().endswith(b"\n")
    assert 0 < len(read(results)) < 200


def test_a_server_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    with running(max_queue=2, step_seconds=0.005) as server:
        requests = write(tmp_path / "in.jsonl", [line(f"r{i}", "fake") for i in range(24)])
        results = tmp_path / "out.jsonl"
        status, told = answer(requests, results, "--url", f"{server.url}/v1", "--concurrency", "6")
    assert status == 0, told
    assert len(read(results)) == 24


@pytest.mark.parametrize("content", ["not results\n", '{"some": "other file"}', "x"])
def test_another_file_is_not_written_into(tmp_path: Path, content: str) -> None:
    requests, other = write(tmp_path / "in.jsonl", [line("a")]), tmp_path / "precious.txt"
    other.write_text(content)
    for results in (other, requests):
        status, told = answer(requests, results, "--url", "127.0.0.1:1")
        assert status == 1
        assert "name another" in told
    assert other.read_text() == content
