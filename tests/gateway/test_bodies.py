"""Bodies in memory at the same time are bounded, and what has ended makes room again."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.running import RunningGateway, running
from headrace.gateway.bodies import Bodies

LIMIT, LARGE = 100_000, 60_000


@pytest.fixture
def narrow() -> Iterator[RunningGateway]:
    """A gateway with room for one large body, whose engine waits."""
    with running() as server:
        server.gateway.bodies = Bodies(LIMIT)
        server.on_loop(server.engine.held.clear)
        yield server


def post(server: RunningGateway, path: str, size: int, **fields: Any) -> httpx.Response:
    """A request of that many bytes: JSON may end in spaces."""
    body = json.dumps({"model": "fake"} | fields).encode().ljust(size)
    return httpx.post(server.url + path, content=body, timeout=20)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_a_body_that_has_no_room_gets_429_until_another_request_has_ended(narrow: RunningGateway) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, narrow, "/v1/completions", LARGE, prompt="Hi", max_tokens=2)
        until(lambda: len(narrow.engine.submitted) == 1)
        refused = post(narrow, "/tokenize", LARGE, prompt="Hi")
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "body_memory_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert isinstance(post(narrow, "/api/show", LARGE).json()["error"], str)
        assert post(narrow, "/v1/messages/count_tokens", LARGE).json()["error"]["type"] == "rate_limit_error"
        assert post(narrow, "/tokenize", 100, prompt="Hi").status_code == 200
        narrow.on_loop(narrow.engine.held.set)
        assert first.result(10).status_code == 200
    until(lambda: narrow.gateway.bodies.held == 0)
    assert post(narrow, "/tokenize", LARGE, prompt="Hi").status_code == 200


def test_a_body_alone_always_has_room(narrow: RunningGateway) -> None:
    assert post(narrow, "/tokenize", 5 * LIMIT, prompt="Hi").status_code == 200


def test_only_what_has_arrived_takes_room_and_goes_with_its_client(narrow: RunningGateway) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-length: 90000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", narrow.port)) as slow:
        slow.sendall(head + b" " * 10)
        until(lambda: narrow.gateway.bodies.held == 10)
        assert post(narrow, "/tokenize", LARGE, prompt="Hi").status_code == 200
        slow.sendall(b" " * LARGE)
        until(lambda: narrow.gateway.bodies.held == 10 + LARGE)
        assert post(narrow, "/tokenize", LARGE, prompt="Hi").status_code == 429
    until(lambda: narrow.gateway.bodies.held == 0)
    assert post(narrow, "/tokenize", LARGE, prompt="Hi").status_code == 200


def test_a_body_in_pieces_is_counted_like_any_other(narrow: RunningGateway) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"model":"fake","prompt":"Hi","max_tokens":2}'
        yield from [b" " * 10_000] * 6

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(httpx.post, f"{narrow.url}/v1/completions", content=pieces(), timeout=20)
        until(lambda: len(narrow.engine.submitted) == 1)
        assert narrow.gateway.bodies.held > LARGE
        narrow.on_loop(narrow.engine.held.set)
        assert first.result(10).status_code == 200
