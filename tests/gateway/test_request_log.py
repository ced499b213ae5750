"""Each request that generates leaves one line of figures, and no word of what was said."""

from __future__ import annotations

import json
import re
import time

import httpx
import pytest

from gateway.running import RunningGateway, running
from headrace.gateway.callers import Callers
from headrace.gateway.keys import environment_key
from headrace.gateway.request_log import LogFormat, log_requests

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (?P<id>\S+) (?P<path>\S+) (?P<status>\d{3})"
    r" prompt=(?P<prompt>\d+) cached=(?P<cached>\d+) output=(?P<output>\d+)"
    r" ttft=(?P<ttft>-|\d+\.\d{3}) duration=(?P<duration>\d+\.\d{3}) queue=(?P<queue>-|\d+\.\d{3})"
    r" model=(?P<model>\S+) key=(?P<key>\S+) request=(?P<request>\S+) policy=(?P<policy>\S+)"
)


def logged(server: RunningGateway, log_format: LogFormat = "text", prompts: bool = False) -> list[str]:
    lines: list[str] = []
    server.gateway.observers = [log_requests(lines.append, log_format, prompts)]
    return lines


def wait_for(lines: list[str]) -> str:
    deadline = time.monotonic() + 10
    while not lines:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (line,) = lines
    return line


def only(lines: list[str]) -> dict[str, str]:
    line = wait_for(lines)
    found = LINE.fullmatch(line)
    assert found is not None, line
    return found.groupdict()


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_line_of_figures(stream: bool) -> None:
    with running(step_seconds=0.01, cached_tokens=2) as server:
        lines = logged(server)
        answer = server.complete(prompt="secret", max_tokens=5, stream=stream)
        line = only(lines)
    assert line["id"] in answer.text and line["id"].startswith("cmpl-")
    assert (line["path"], line["status"]) == ("/v1/completions", "200")
    assert (line["model"], line["policy"], line["key"]) == ("fake", "-", "anonymous")
    assert line["request"] == answer.headers["x-request-id"]
    assert (line["prompt"], line["cached"], line["output"]) == ("6", "2", "5")
    assert 0 < float(line["ttft"]) < float(line["duration"])
    assert not re.search("secret|Water", lines[0])


def test_a_refusal_is_logged_with_its_status(server: RunningGateway) -> None:
    lines = logged(server)
    server.chat(model="unheard-of")
    line = only(lines)
    assert (line["id"], line["status"], line["output"], line["ttft"]) == ("-", "404", "0", "-")
    assert "unheard-of" not in lines[0]


def test_a_client_that_went_away_is_logged_with_what_it_had() -> None:
    with running(step_seconds=0.01) as server:
        lines = logged(server)
        body = {"model": "fake", "prompt": "Hi", "max_tokens": 400, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            next(answer.iter_raw())
        line = only(lines)
    assert line["status"] == "499"
    assert 1 <= int(line["output"]) < 400
    assert line["ttft"] != "-"


def test_a_line_may_be_json(server: RunningGateway) -> None:
    lines = logged(server, "json")
    answer = server.complete(prompt="secret", max_tokens=5)
    line = json.loads(wait_for(lines))
    assert line["id"] == answer.json()["id"]
    assert (line["status"], line["prompt"], line["output"]) == (200, 6, 5)
    assert 0 <= line["ttft"] <= line["duration"] < 10
    assert "secret" not in lines[0] and "asked" not in line


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_was_asked_is_logged_where_that_is_wanted(server: RunningGateway, log_format: LogFormat) -> None:
    lines = logged(server, log_format, prompts=True)
    server.chat(messages=[{"role": "user", "content": "the secret"}])
    assert "the secret" in wait_for(lines)


@pytest.mark.parametrize("shown", [None, "a-key-that-is-not-known"])
def test_a_caller_without_a_valid_key_is_logged_and_its_key_is_not(shown: str | None) -> None:
    headers = {"x-request-id": "mine"} | ({"authorization": f"Bearer {shown}"} if shown else {})
    with running(callers=Callers(key=environment_key("a-key-that-someone-made-up"))) as server:
        lines = logged(server, prompts=True)
        asked = httpx.post(f"{server.url}/v1/chat/completions?key={shown}", json={"a": 1}, headers=headers)
        line = only([wait_for(lines).removesuffix(" asked=null")])
    assert asked.status_code == 401
    assert (line["path"], line["status"], line["model"], line["key"]) == (
        "/v1/chat/completions",
        "401",
        "-",
        "-",
    )
    assert line["request"] == "mine"
    assert "a-key" not in lines[0]


def test_a_path_that_nobody_known_asks_for_stays_within_its_line() -> None:
    with running(callers=Callers(key=environment_key("a-key-that-someone-made-up"))) as server:
        lines = logged(server)
        httpx.get(f"{server.url}/x%0A2026-01-01T00:00:00.000Z%20forged{'y' * 1000}")
        line = only(lines)
    assert line["path"].startswith("/x%0A2026-01-01") and len(line["path"]) == 200
