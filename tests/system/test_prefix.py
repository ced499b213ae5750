"""Prompts as a server's users see them in its cache: over HTTP, and by `headrace prefix`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

from system.test_serve import MODEL, Server, eventually, serving

SYSTEM = "the world and the word of " * 10
OPENING = {"role": "system", "content": SYSTEM}


@pytest.fixture
def server(synthetic_model: Path) -> Iterator[Server]:
    with serving(synthetic_model) as server:
        yield server


def chat(question: str) -> dict[str, Any]:
    return {"messages": [OPENING, {"role": "user", "content": question}]}


def post(server: Server, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    url = f"{server.url}/v1/prefix/{path}"
    return httpx.post(url, json={"model": MODEL} | body, headers=headers, timeout=30)


def explained(server: Server, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    (report,) = post(server, "explain", body, **headers).raise_for_status().json()["data"]
    return report


def command(server: Server, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "100"}
    name, *rest = arguments
    return subprocess.run(
        [sys.executable, "-m", "headrace", "prefix", name, "--url", server.url, *rest],
        input=stdin, capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip


def test_a_report_says_what_a_request_will_find_and_where_it_parts_from_the_cached_one(
    server: Server,
) -> None:
    assert explained(server, chat("hello old world"))["cached_tokens"] == 0
    server.chat(**chat("hello old world"))
    for _ in range(2):  # it changes nothing
        report = explained(server, chat("hello new world"))
    parting = report["divergence"]
    assert parting["message"] == 1
    assert parting["before"].endswith("hello ") or parting["before"].endswith("hello")
    assert parting["sent"].strip().startswith("new world")
    assert parting["cached"].strip().startswith("old world")
    assert parting["position"] == report["cached_tokens"] > 0.5 * report["prompt_tokens"]
    usage = server.chat(**chat("hello new world")).json()["usage"]
    assert usage["prompt_tokens"] == report["prompt_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": report["cached_tokens"]}
    assert explained(server, chat("hello new world"))["divergence"] is None


def test_any_request_can_ask_for_the_report_whole_or_in_a_stream(server: Server) -> None:
    server.chat(**chat("hello old world"))
    body = {"model": MODEL, "max_tokens": 4, "stream_options": {"include_usage": True}}
    url, headers = f"{server.url}/v1/chat/completions", {"x-headrace-explain": "prefix"}
    whole = httpx.post(url, json=body | chat("hello new world"), headers=headers, timeout=30).json()
    streamed = body | chat("hello big world") | {"stream": True}
    lines = httpx.post(url, json=streamed, headers=headers, timeout=30).text.splitlines()
    last = json.loads([line for line in lines if line.startswith("data: {")][-1].removeprefix("data: "))
    for answer, word in ((whole, "new"), (last, "big")):
        details = answer["usage"]["prompt_tokens_details"]
        (report,) = details["prefix"]
        assert report["cached_tokens"] == details["cached_tokens"]
        assert report["divergence"]["sent"].strip().startswith(word)


def test_text_of_others_is_shown_to_this_machine_only_and_never_without_the_salt(server: Server) -> None:
    server.chat(**chat("hello old world"))
    asked = chat("hello new world")
    assert explained(server, asked)["divergence"]["cached"]
    hidden = {"x-forwarded-for": "192.0.2.1"}
    assert explained(server, asked, **hidden)["divergence"]["cached"] is None
    listed = httpx.get(f"{server.url}/v1/prefix", headers=hidden).json()["data"]
    assert listed and all(prefix["text"] is None for prefix in listed)
    refused = post(server, "pin", asked, **hidden)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "pin_not_allowed")
    server.chat(**chat("a secret word"), cache_salt="ours")
    everything = httpx.get(f"{server.url}/v1/prefix?limit=100").text
    assert "secret" not in everything
    salted = httpx.get(f"{server.url}/v1/prefix", headers=hidden | {"x-headrace-cache-salt": "ours"}).text
    assert "secret" in salted


def test_a_system_prompt_is_pinned_by_command_survives_the_worker_and_is_unpinned(
    server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "system.txt"
    file.write_text(SYSTEM)
    pinned = command(server, "pin", str(file), "--system", "--json")
    assert pinned.returncode == 0, pinned.stderr
    pin = json.loads(pinned.stdout)
    assert 0 <= pin["prompt_tokens"] - pin["pinned_tokens"] < 16
    os.kill(server.health()["workers"][0]["pid"], signal.SIGKILL)
    shown = f"{pin['id']}  pin"
    eventually(lambda: server.health()["status"] == "ok" and shown in command(server, "list").stdout)
    cached = server.chat(**chat("hello")).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= pin["pinned_tokens"]
    listed = command(server, "list").stdout.splitlines()
    assert listed[0].split() == ["ID", "TOKENS", "HITS", "TEXT"]
    assert any(line.startswith(shown) and "the world and" in line for line in listed)
    assert "no longer pinned" in command(server, "unpin", pin["id"]).stdout
    gone = command(server, "unpin", pin["id"])
    assert (gone.returncode, "There is no pin" in gone.stderr) == (1, True)


def test_requests_in_a_file_are_warmed_and_explained_line_by_line(server: Server) -> None:
    words = ("old", "new\u2028and\x85newer")
    lines = "\n".join(json.dumps(chat(f"hello {word} world"), ensure_ascii=False) for word in words)
    assert command(server, "warm", "-", stdin=lines).stdout.count("tokens are cached") == 2
    told = command(server, "explain", "-", stdin=json.dumps(chat("hello no world"))).stdout
    assert "leaves the nearest cached prompt at token" in told and "message 1:" in told
    assert "(0%)" in command(server, "explain", "-", stdin="zebra").stdout
    broken = command(server, "explain", "-", stdin='{"prompt": }')
    assert (broken.returncode, "line 1 is not valid JSON" in broken.stderr) == (1, True)
