"""What every request passes: its id, its key, its caller's limits, and whether a web page may ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.running import RunningGateway, running
from headrace.gateway.callers import Callers
from headrace.gateway.server import ServerOptions

KEY = "a-key-that-someone-made-up"
BODY = {"model": "fake", "prompt": "Hi", "max_tokens": 2}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with one key, and two origins whose pages may ask."""
    file: Path = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(f"[keys.bob]\nkey = '{KEY}'\nrequests_per_minute = 600\n")
    options = ServerOptions(origins=["https://a.example", "https://b.example"])
    with running(callers=Callers(file), options=options) as server:
        yield server


def ask(server: RunningGateway, path: str = "/v1/completions", **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    if path == "/v1/completions":
        return httpx.post(server.url + path, json=BODY, headers=names, timeout=10)
    return httpx.get(server.url + path, headers=names, timeout=10)


def test_a_key_opens_the_server(guarded: RunningGateway) -> None:
    assert ask(guarded, authorization=f"Bearer {KEY}").status_code == 200
    assert ask(guarded, x_api_key=KEY).status_code == 200
    assert ask(guarded, path="/metrics", api_key=KEY).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/metrics", "/nowhere"])
@pytest.mark.parametrize("key", [None, "a-key-that-is-not-known"])
def test_without_a_known_key_there_is_only_401(guarded: RunningGateway, path: str, key: str | None) -> None:
    answer = ask(guarded, path, **({"x_api_key": key} if key else {}))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert "not-known" not in answer.text


def test_anthropics_clients_are_refused_in_their_own_words(guarded: RunningGateway) -> None:
    error = ask(guarded, path="/v1/messages").json()
    assert (error["type"], error["error"]["type"]) == ("error", "authentication_error")


def test_health_needs_no_key(guarded: RunningGateway) -> None:
    assert ask(guarded, path="/health").status_code == 200


def test_an_answer_tells_what_is_left_of_the_limits(guarded: RunningGateway) -> None:
    answer = ask(guarded, x_api_key=KEY)
    assert answer.headers["x-ratelimit-limit-requests"] == "600"
    assert int(answer.headers["x-ratelimit-remaining-requests"]) <= 600
    assert "x-ratelimit-limit-tokens" not in answer.headers
    assert "x-ratelimit-limit-requests" not in ask(guarded, path="/health").headers


def test_a_request_keeps_its_id_or_is_given_one(guarded: RunningGateway) -> None:
    assert ask(guarded, x_request_id="from-me-1").headers["x-request-id"] == "from-me-1"
    first, second = (ask(guarded, path="/health").headers["x-request-id"] for _ in range(2))
    assert first.startswith("req-") and first != second
    for insane in ("x" * 129, "with space"):
        assert ask(guarded, x_request_id=insane).headers["x-request-id"].startswith("req-")


def test_pages_of_named_origins_may_ask(guarded: RunningGateway) -> None:
    for origin in ("https://a.example", "https://b.example"):
        answer = ask(guarded, path="/v1/models", origin=origin)
        assert answer.headers["access-control-allow-origin"] == origin
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert (
        "access-control-allow-origin" not in ask(guarded, path="/health", origin="https://c.example").headers
    )


def test_a_browser_may_look_before_it_asks(guarded: RunningGateway) -> None:
    headers = {
        "origin": "https://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-os",
    }
    answer = httpx.options(f"{guarded.url}/v1/chat/completions", headers=headers)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    assert answer.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert "POST" in answer.headers["access-control-allow-methods"]


def test_any_origin_may_ask_where_all_are_let_in() -> None:
    with running(options=ServerOptions(origins=["*"])) as server:
        answer = ask(server, path="/health", origin="https://anyone.example")
        assert answer.headers["access-control-allow-origin"] == "*"


def test_no_page_may_ask_unless_told(server: RunningGateway) -> None:
    answer = ask(server, path="/health", origin="https://a.example")
    assert "access-control-allow-origin" not in answer.headers
