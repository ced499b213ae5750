"""`headrace bench serve` as users run it, on a real server with a small model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.serve.scripted import WHOLE, scripted
from gateway.running import running
from headrace.gateway.callers import Callers
from headrace.gateway.keys import environment_key
from system.test_serve import Server, serving

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

SMALL = ["--vocab-size", "250", "--output-len", "5"]


@pytest.fixture(scope="module")
def server(synthetic_model: Path) -> Iterator[Server]:
    with serving(synthetic_model) as server:
        yield server


def bench(*args: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "headrace", "bench", "serve", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def measured(*args: object) -> dict[str, Any]:
    result = bench(*args, "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["failed"] == 0, result.stderr
    assert report["short_answers"] == 0
    return report


def test_a_closed_loop_asks_for_exact_lengths_and_reports_every_measure(server: Server) -> None:
    asked = ["--requests", 12, "--concurrency", 4, "--input-len", 40, "--slo-ttft", 10_000]
    report = measured("--url", server.url, *asked, *SMALL)
    assert report["model"] == "synthetic"
    assert report["completed"] == 12
    assert (report["input_tokens"], report["output_tokens"]) == (12 * 40, 12 * 5)
    assert report["goodput"]["attainment"] == 1
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "latency_ms"):
        assert set(report[name]) == {"mean", "p50", "p90", "p95", "p99"}
    assert 0 < report["ttft_ms"]["p50"] <= report["latency_ms"]["p99"]
    assert 0 < report["client"]["cpu_s"] < report["duration_s"]


def test_a_key_is_shown_to_the_server_and_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a-key-that-someone-made-up"
    few = ["--requests", 2, "--input-len", 8, *SMALL]
    with running(callers=Callers(key=environment_key(key))) as server:
        without = bench("--url", server.url, *few)
        assert without.returncode == 1 and "--api-key" in without.stderr
        assert measured("--url", server.url, *few, "--api-key", key)["completed"] == 2
        monkeypatch.setenv("HEADRACE_API_KEY", key)
        monkeypatch.setenv("OPENAI_API_KEY", "another")
        asked = bench("--url", server.url, *few)
    assert asked.returncode == 0 and key not in asked.stdout + asked.stderr


def test_a_shared_prefix_is_found_in_the_cache(server: Server) -> None:
    asked = ["--workload", "shared-prefix", "--prefix-len", 96, "--input-len", 8, "--requests", 6]
    report = measured("--url", server.url, *asked, "--concurrency", 1, *SMALL)
    assert report["input_tokens"] == 6 * 104
    assert report["cached_input_tokens"] >= 5 * 96


def test_a_conversation_finds_its_own_past_in_the_cache(server: Server) -> None:
    asked = ["--workload", "multi-turn", "--turns", 3, "--input-len", 10, "--output-len", 5, "--requests", 6]
    report = measured("--url", server.url, *asked, "--concurrency", 2)
    assert report["completed"] == 6
    assert report["cached_input_tokens"] > 0


def test_an_open_loop_takes_as_long_as_its_arrivals(server: Server) -> None:
    report = measured("--url", server.url, "--rate", 20, "--requests", 20, "--input-len", 8, *SMALL)
    assert report["load"]["rate"] == 20
    assert report["duration_s"] > 0.4


@pytest.mark.parametrize("name", ["azure_2023_code.csv.gz", "mooncake_conversation.jsonl.gz"])
def test_a_trace_is_played_and_what_the_model_cannot_hold_is_left_out(
    server: Server, traces: Path, name: str
) -> None:
    asked = ["--trace", traces / name, "--speed", 50, "--requests", 3, "--vocab-size", 250]
    report = measured("--url", server.url, *asked)
    assert report["completed"] == 3
    assert report["load"]["left_out"] > 0


def test_without_a_url_it_starts_a_server_with_the_flags_given_and_ends_it(
    synthetic_model: Path, tmp_path: Path
) -> None:
    model = ["--model", synthetic_model, "--requests", 4, "--input-len", 32, *SMALL]
    result = bench(*model, "--json", "--", "--threads", 1, "--cache-tokens", 2048, "--context-length", 512)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["completed"] == 4
    assert "context 512 tokens, cache 2048 tokens" in result.stderr
    assert result.stderr.rstrip().endswith("headrace: ended")


def test_a_sigterm_ends_its_server_too(synthetic_model: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = ["--model", str(synthetic_model), "--requests", "100000", *SMALL, "--", "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "bench", "serve", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    told = iter(process.stderr.readline, "")
    url = next(line for line in told if "http://" in line).partition("http://")[2].partition(";")[0]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    host, _, port = url.strip().partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_the_plot_is_drawn_as_its_name_says(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    for name, begins in (("run.svg", b"<?xml"), ("run.png", b"\x89PNG")):
        measured("--url", server.url, "--requests", 3, "--input-len", 8, "--plot", tmp_path / name, *SMALL)
        assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_server_that_refuses_the_requests_is_told_of_at_once(server: Server) -> None:
    result = bench("--url", server.url, "--vocab-size", 100_000, "--json")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "expected a token id from 0 to" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--rate", 1, "--concurrency", 2], "exclude each other"),
        (["--speed", 2], "--speed"),
        (["--turns", 2], "--turns means nothing to random"),
        (["--url", "http://127.0.0.1:1", "--", "--threads", 1], "runs already"),
        (["--url", "http://127.0.0.1:1"], "no OpenAI-compatible server at 127.0.0.1:1"),
        (["--url", "ftp://x"], "expected an address like"),
        (["--plot", "plot.pdf"], "must end in .svg or .png"),
        (["--model", "no-such-model"], "before it was ready"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_word(args: list[object], said: str) -> None:
    result = bench(*args)
    assert result.returncode in (1, 2)
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_plot_without_its_extra_says_how_to_get_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; from headrace.cli import main; "
        f"sys.argv = ['headrace', 'bench', 'serve', '--plot', {str(tmp_path / 'p.svg')!r}]; main()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 1
    assert "pip install 'headrace[plot]'" in result.stderr


def test_a_server_of_another_make_is_measured_without_usage() -> None:
    with scripted(b"HTTP/1.1 404 No\r\ncontent-length: 2\r\n\r\n{}", WHOLE) as (server, target):
        report = measured(
            "--url", f"127.0.0.1:{target.address.port}", *["--model", "m", "--requests", 3, "--output-len", 2]
        )
    assert report["output_tokens"] == 6
    assert server.requests == 5
