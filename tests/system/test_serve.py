"""`headrace serve` as users run it: gateway and worker as real processes, on a small model."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

MODEL = "synthetic"
HELLO = [{"role": "user", "content": "hello world"}]
LONG = {"model": MODEL, "prompt": ["hello"] * 16, "ignore_eos": True, "stream": True}
"""Runs for a few seconds: sixteen sequences to the end of the context."""


class Server:
    """A running `headrace serve`."""

    def __init__(self, process: subprocess.Popen[str], url: str, told: str) -> None:
        self.process = process
        self.url = url
        self.told = told
        """What it said on standard error until it was ready."""

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 8, "ignore_eos": True, "seed": 1} | fields
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=30)

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/health").json()
        return answer

    def gauge(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name}{{")).rsplit(" ", 1)[1])


@contextmanager
def serving(model: Path, *options: str) -> Iterator[Server]:
    kept = (name for name in os.environ if not name.startswith("HEADRACE_") or name == "HEADRACE_HOME")
    environment = {name: os.environ[name] for name in kept}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    arguments = ["--model", str(model), "--port", "0", "--threads", "1", "--cache-tokens", "8192", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=model.parent,
    )
    assert process.stderr is not None
    try:
        told = ""
        while "http://" not in told:
            line = process.stderr.readline()
            assert line, f"the server ended: {told}"
            told += line
        url = told[told.index("http://") :].split(";")[0]
        yield Server(process, url, told)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(synthetic_model: Path) -> Iterator[Server]:
    with serving(synthetic_model) as server:
        yield server


def eventually(check: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def test_the_size_of_the_cache_is_told_in_tokens_and_gib(server: Server) -> None:
    assert re.search(r"context 2048 tokens, cache 8192 tokens \(\d\.\d\d GiB\)\n", server.told)


def test_the_official_client_is_answered_alike_whole_and_in_a_stream(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        extra = {"ignore_eos": True}
        whole = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=20, seed=3, extra_body=extra
        )
        stream = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=20, seed=3, extra_body=extra, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 20


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_request_that_the_server_proposes_works_as_pasted(synthetic_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "it's a small one.gguf"
    model.symlink_to(synthetic_model)
    with serving(model) as server:
        assert server.process.stderr is not None
        lines = [server.process.stderr.readline() for _ in range(2)]
        pasted = subprocess.run(lines[1], shell=True, capture_output=True, text=True, timeout=30)
    answer = json.loads(pasted.stdout)
    assert answer["object"] == "chat.completion"
    assert 1 <= answer["usage"]["completion_tokens"] <= 100


def test_a_prompt_seen_before_is_cached_and_salt_keeps_it_private(server: Server) -> None:
    messages = [{"role": "user", "content": "the world and the word of " * 20}]
    first, second, salted = (
        server.chat(messages=messages, cache_salt=salt).json() for salt in ("ours", "ours", "mine")
    )
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (first, second, salted)]
    assert cached == [0, first["usage"]["prompt_tokens"] - 1, 0]
    contents = {answer["choices"][0]["message"]["content"] for answer in (first, second, salted)}
    assert len(contents) == 1


def test_a_control_token_in_a_message_is_text(server: Server) -> None:
    plain, tricky = ([{"role": "user", "content": c}] for c in ("hi", "hi<|im_end|>"))
    more = server.chat(messages=tricky).json()["usage"]["prompt_tokens"]
    assert more > server.chat(messages=plain).json()["usage"]["prompt_tokens"] + 1


def test_a_client_that_goes_away_frees_what_it_held(server: Server) -> None:
    before = server.gauge("headrace_engine_generated_tokens_total")
    with httpx.stream("POST", f"{server.url}/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert server.gauge("headrace_running_requests") > 0
    eventually(lambda: server.gauge("headrace_running_requests") == 0)
    assert server.gauge("headrace_cache_blocks_used") == 0
    computed = server.gauge("headrace_engine_generated_tokens_total") - before
    assert computed < 16 * 1000, "of some 16 * 2000, were it not for the client"


def test_garbage_is_refused_and_the_server_goes_on(server: Server) -> None:
    assert httpx.post(f"{server.url}/v1/chat/completions", content=b"{").status_code == 400
    assert server.chat(temperature=-1).json()["error"]["param"] == "temperature"
    too_long = server.chat(messages=[{"role": "user", "content": "zq " * 20_000}])
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    assert server.chat(model="other").status_code == 404
    assert server.chat().status_code == 200


def test_a_stream_outlives_the_worker_that_began_it(synthetic_model: Path) -> None:
    body = LONG | {"temperature": 1, "seed": 1, "max_tokens": 200}

    def texts(server: Server, kill: bool) -> dict[int, str]:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as answer:
            lines = (line for line in answer.iter_lines() if line)
            first = next(lines)
            if kill:
                os.kill(server.health()["workers"][0]["pid"], signal.SIGKILL)
            events = [line.removeprefix("data: ") for line in (first, *lines)]
        assert events[-1] == "[DONE]"
        found: dict[int, str] = {}
        for event in events[:-1]:
            (choice,) = json.loads(event)["choices"]
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
        return found

    with serving(synthetic_model) as server:
        assert texts(server, kill=True) == texts(server, kill=False)
        assert server.health()["workers"][0]["restarts"] == 1


def test_sigterm_lets_a_stream_finish_and_ends_both_processes(synthetic_model: Path) -> None:
    with serving(synthetic_model) as server:
        worker = server.health()["workers"][0]["pid"]
        body = LONG | {"max_tokens": 100}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.process.wait(10) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_a_truncated_model_is_refused_in_one_line(synthetic_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(synthetic_model.read_bytes()[:100_000])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "headrace", "serve", "--port", "0", "--model", str(broken)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("headrace: ")


def test_the_port_is_free_again_when_the_server_has_ended(synthetic_model: Path) -> None:
    with serving(synthetic_model) as server:
        port = int(server.url.rsplit(":", 1)[1])
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 0
    with socket.create_server(("127.0.0.1", port)):
        pass
