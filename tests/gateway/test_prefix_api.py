"""The endpoints about prefixes: what they take, what they refuse, and that salts keep prompts apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.running import RunningGateway, running

LONG = "The same beginning of every prompt, "


@pytest.fixture
def warm() -> Iterator[RunningGateway]:
    """A gateway that holds one prompt."""
    with running() as server:
        assert ask(server, "warm", prompt=LONG + "warmed").status_code == 200
        yield server


def ask(server: RunningGateway, verb: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/prefix/{verb}", json={"model": "fake"} | fields, timeout=10)


def listed(server: RunningGateway, query: str = "", **headers: str) -> httpx.Response:
    return httpx.get(f"{server.url}/v1/prefix{query}", headers=headers, timeout=10)


def test_a_prompt_is_told_where_it_leaves_what_is_cached(warm: RunningGateway) -> None:
    (report,) = ask(warm, "explain", prompt=LONG + "asked").json()["data"]
    assert report["cached_tokens"] == len(LONG)
    assert (report["divergence"]["sent"], report["divergence"]["cached"]) == ("asked", "warmed")


def test_a_pin_is_listed_until_it_is_taken_back(warm: RunningGateway) -> None:
    (pin,) = ask(warm, "pin", prompt=LONG).json()["data"]
    assert (pin["pinned_tokens"], pin["blocks_pinned"]) == (32, 2)
    rows = {row["id"]: row["pinned"] for row in listed(warm).json()["data"]}
    assert rows[pin["id"]] and len(rows) == 2
    assert ask(warm, "unpin", id=pin["id"]).json()["pinned"] is False
    assert ask(warm, "unpin", id=pin["id"]).status_code == 404
    assert not any(row["pinned"] for row in listed(warm).json()["data"])


def test_a_salt_sees_its_own_prefixes_alone(warm: RunningGateway) -> None:
    assert ask(warm, "warm", prompt="mine", cache_salt="mine").status_code == 200
    (row,) = listed(warm, **{"x-headrace-cache-salt": "mine"}).json()["data"]
    assert row["text"] == "mine"
    assert [row["text"] for row in listed(warm).json()["data"]] == [LONG + "warmed"]


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "1.5", "", "9" * 5000, "%C2%B2"])
def test_a_limit_that_cannot_be_is_refused_by_name(warm: RunningGateway, limit: str) -> None:
    answer = listed(warm, f"?limit={limit}")
    if limit:
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "limit"
    else:
        assert answer.status_code == 200  # nothing is asked


@pytest.mark.parametrize(
    ("verb", "fields", "status", "param"),
    [
        ("explain", {}, 400, "messages"),
        ("explain", {"prompt": 5}, 400, "prompt"),
        ("warm", {"prompt": "x", "model": "nope"}, 404, "model"),
        ("pin", {"prompt": "short"}, 409, None),
        ("unpin", {}, 400, "id"),
    ],
)
def test_a_request_that_cannot_be_is_refused(
    warm: RunningGateway, verb: str, fields: dict[str, Any], status: int, param: str | None
) -> None:
    answer = ask(warm, verb, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
