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


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("x-headrace-qualty", "x-headrace-quality"),
        ("x-headrace-max-first-token", "x-headrace-max-first-token-ms"),
        ("X-Headrace-Time-Out", "x-headrace-timeout"),
        ("x-headrace-", "x-headrace-models"),
    ],
)
def test_a_misspelt_header_of_ours_is_refused_with_the_one_that_was_meant(
    server: RunningGateway, misspelt: str, meant: str
) -> None:
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY, headers={misspelt: "1"}, timeout=10)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, misspelt.lower())
    assert (error["type"], error["code"]) == ("invalid_request_error", "unknown_header")
    assert f"'{misspelt.lower()}'; did you mean '{meant}'?" in error["message"]


def test_a_misspelt_header_is_refused_in_the_words_of_each_dialect(server: RunningGateway) -> None:
    headers = {"x-headrace-modles": "a"}
    refused = [httpx.post(server.url + path, headers=headers) for path in ("/v1/messages", "/api/chat")]
    assert [answer.status_code for answer in refused] == [400, 400]
    anthropics, ollamas = (answer.json() for answer in refused)
    assert (anthropics["type"], anthropics["error"]["type"]) == ("error", "invalid_request_error")
    assert "x-headrace-models" in ollamas["error"]


def test_headers_that_are_not_ours_are_nobodys_business(server: RunningGateway) -> None:
    headers = {"x-headraces-quality": "1", "headrace-quality": "1", "x-custom": "1"}
    assert httpx.post(f"{server.url}/v1/completions", json=BODY, headers=headers).status_code == 200


def test_who_has_no_key_is_told_of_that_first(guarded: RunningGateway) -> None:
    assert ask(guarded, x_headrace_qualty="1").status_code == 401
    assert ask(guarded, x_headrace_qualty="1", x_api_key=KEY).status_code == 400
    assert ask(guarded, path="/health", x_headrace_qualty="1").status_code == 200
