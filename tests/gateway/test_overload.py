"""Two keys want more than there is: both get their share, and what is refused is told when to come."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from gateway.running import RunningGateway, running
from gateway.test_lifecycle import eventually
from headrace.gateway.admission import Admission
from headrace.gateway.callers import Callers
from headrace.gateway.waiting_room import Capacity

KEYS = {"heavy": "the-key-of-the-heavy-one", "light": "the-key-of-the-light-one"}
Answers = Counter[tuple[str, int]]
"""By key and status."""


@contextmanager
def shared(tmp_path: Path, *, places: int, max_queue: int, limits: str = "") -> Iterator[RunningGateway]:
    """A gateway with a few places and two keys."""
    file = tmp_path / "keys.toml"
    file.write_text("".join(f"[keys.{name}]\nkey = '{key}'\n{limits}\n" for name, key in KEYS.items()))
    with running(callers=Callers(file), step_seconds=0.005) as server:
        server.gateway.admission = Admission(max_queue, Capacity(places))
        yield server


def load(server: RunningGateway, clients: dict[str, int], enough: Callable[[Answers], bool]) -> Answers:
    """So many clients with each key, of which each asks again at once, until there are enough answers."""
    answers: Answers = Counter()
    end = time.monotonic() + 30
    body = {"model": "fake", "prompt": "Hi", "max_tokens": 10}

    def ask(name: str) -> None:
        headers = {"authorization": f"Bearer {KEYS[name]}"}
        with httpx.Client(headers=headers, timeout=60) as client:
            while not enough(answers) and time.monotonic() < end:
                answer = client.post(f"{server.url}/v1/completions", json=body)
                answers[name, answer.status_code] += 1
                if answer.status_code == 429:
                    assert int(answer.headers["retry-after"]) >= 1
                    time.sleep(0.02)

    threads = [threading.Thread(target=ask, args=[name]) for name, n in clients.items() for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def test_one_heavy_key_cannot_starve_another(tmp_path: Path) -> None:
    with shared(tmp_path, places=2, max_queue=6) as server:
        answers = load(server, {"heavy": 20, "light": 3}, lambda told: told["light", 200] >= 40)
        assert server.gateway.admission.admitted == 0 and server.gateway.admission.room("fake").running == 0
    assert {status for _, status in answers} == {200, 429}
    assert answers["light", 429] == 0
    assert answers["heavy", 429] > 0
    # Three clients that wait for each answer always have one request more under way than the fair share is.
    assert answers["light", 200] >= 0.7 * answers["heavy", 200]


def test_a_key_above_its_rate_is_refused_and_the_other_is_not(tmp_path: Path) -> None:
    with shared(tmp_path, places=8, max_queue=64, limits="requests_per_minute = 5") as server:
        answers = load(server, {"heavy": 3}, lambda told: told["heavy", 429] >= 10)
        assert answers["heavy", 200] == 5
        assert load(server, {"light": 1}, bool) == {("light", 200): 1}


def test_generated_tokens_count_against_the_rate(tmp_path: Path) -> None:
    with shared(tmp_path, places=8, max_queue=64, limits="tokens_per_minute = 50") as server:
        body = {"model": "fake", "prompt": "Hi", "max_tokens": 40}
        headers = {"x-api-key": KEYS["light"]}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200
        refused = httpx.post(
            f"{server.url}/v1/completions", json=body | {"prompt": "Hi" * 10}, headers=headers
        )
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 8 <= int(refused.headers["retry-after"]) <= 15
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) <= 9


def test_a_place_is_free_when_the_engine_is_done_though_the_client_does_not_read(tmp_path: Path) -> None:
    with shared(tmp_path, places=1, max_queue=64) as server, socket.socket() as raw:
        fields = {"prompt": ["Hi"] * 60, "max_tokens": 200, "logprobs": 20, "stream": True}
        body = json.dumps({"model": "fake"} | fields).encode()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", server.port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {KEYS['heavy']}\r\n"
        raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: server.gateway.admission.admitted == 60)
        assert load(server, {"light": 1}, bool) == {("light", 200): 1}
        assert server.gateway.admission.admitted == 60  # nobody has read it
