"""Embeddings of a remote: handed on as they come, and paid, limited and watched over as chats are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.remotes.upstream import Exchange, Script, in_turn, openai_answer, refusing, stalling
from gateway.routed.fleet import SECRET, Fleet, eventually, far, here, key_of, keys, routed

VECTORS = [[0.5, -1.0], [2.25, 1e-3]]


def vectors(*made: Any, usage: Any = 7) -> Script:
    """Answers with these, the last one first."""

    async def script(exchange: Exchange) -> None:
        data = [{"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(made)]
        await exchange.answer(
            200,
            {
                "object": "list",
                "data": data[::-1],
                "model": "theirs",
                "usage": {"prompt_tokens": usage, "total_tokens": usage},
            },
        )

    return script


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    models = {
        "far": far(vectors(*VECTORS), upstream="far-1", output_price=0.0),
        "claude": far(openai_answer(), api="anthropic"),
        "near": here(),
    }
    with routed(tmp_path_factory.mktemp("fleet"), models) as fleet:
        yield fleet


def embed(fleet: Fleet, model: str = "far", given: Any = ("a", "bc"), **fields: Any) -> httpx.Response:
    headers = {n.replace("_", "-"): str(fields.pop(n)) for n in list(fields) if n.startswith("x_")}
    body = {"model": model, "input": given} | fields
    return fleet.client.post("/v1/embeddings", json=body, headers=headers)


def test_headers_tell_the_model_and_the_cost_as_those_of_chats_do(fleet: Fleet) -> None:
    answer = embed(fleet)
    told = {name: answer.headers[f"x-headrace-{name}"] for name in ("model", "tier", "policy", "attempts")}
    assert told == {"model": "far", "tier": "remote", "policy": "far", "attempts": "far"}
    assert answer.headers["x-headrace-why"] == "named by the request"
    assert answer.headers["x-headrace-cost"] == "0.000007000"


def test_vectors_come_in_order_and_cost_what_their_tokens_do(fleet: Fleet) -> None:
    before = fleet.spent()[0]
    told = embed(fleet, dimensions=2).json()
    assert [each["embedding"] for each in told["data"]] == VECTORS
    assert [each["index"] for each in told["data"]] == [0, 1]
    assert (told["object"], told["model"]) == ("list", "far")
    assert (told["usage"]["prompt_tokens"], told["usage"]["total_tokens"]) == (7, 7)
    assert told["usage"]["headrace"]["cost"] == pytest.approx(7e-6)
    exchange = fleet.upstreams["far"].exchanges[-1]
    assert exchange.path == "/v1/embeddings"
    assert exchange.body == {"model": "far-1", "input": ["a", "bc"], "dimensions": 2}
    assert exchange.headers["authorization"] == f"Bearer {SECRET}"
    assert exchange.headers["accept"] == "application/json"
    assert fleet.spent() == (before + 7000, 0)
    assert fleet.metric("headrace_route_cost_total", policy="far", model="far") > 0


def test_the_official_client_takes_them(fleet: Fleet) -> None:
    """It asks for base64 where it is not told otherwise."""
    fleet.upstreams["far"].script = vectors("AAAAPwAAgL8=")
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0) as client:
        assert client.embeddings.create(model="far", input="a").data[0].embedding == [0.5, -1.0]
    assert fleet.upstreams["far"].exchanges[-1].body["encoding_format"] == "base64"
    fleet.upstreams["far"].script = vectors(*VECTORS)


def test_anthropics_api_has_none_and_a_policy_neither_and_models_here_have_their_own(fleet: Fleet) -> None:
    refused = embed(fleet, "claude")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert "gives no embeddings there" in refused.json()["error"]["message"]
    assert not fleet.upstreams["claude"].exchanges
    assert "auto is a policy" in embed(fleet, "auto").json()["error"]["message"]
    assert embed(fleet, "near").json()["model"] == "near"
    assert embed(fleet, "nobody").status_code == 404


def test_ollamas_clients_get_them_too(fleet: Fleet) -> None:
    before = fleet.spent()[0]
    answer = fleet.client.post("/api/embed", json={"model": "far:latest", "input": ["a", "bc"]})
    told = answer.json()
    assert (told["embeddings"], told["model"], told["prompt_eval_count"]) == (VECTORS, "far:latest", 7)
    assert told["headrace"]["cost"] == pytest.approx(7e-6)
    assert answer.headers["x-headrace-cost"] == "0.000007000"
    assert fleet.upstreams["far"].exchanges[-1].body == {"model": "far-1", "input": ["a", "bc"]}
    fleet.upstreams["far"].script = vectors(VECTORS[0])
    older = fleet.client.post("/api/embeddings", json={"model": "far", "prompt": "a"})
    fleet.upstreams["far"].script = vectors(*VECTORS)
    assert (older.json()["embedding"], older.headers["x-headrace-model"]) == (VECTORS[0], "far")
    assert fleet.spent() == (before + 14000, 0)
    near = fleet.client.post("/api/embed", json={"model": "near", "input": "a"})
    assert (near.json()["embeddings"], "headrace" in near.json()) == ([[97.0, 1.0]], False)
    assert "x-headrace-model" not in near.headers


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
def test_ollamas_clients_are_told_what_cannot_be_asked_for(fleet: Fleet, path: str) -> None:
    def asked(model: str) -> tuple[int, str]:
        answer = fleet.client.post(path, json={"model": model, "input": "a", "prompt": "a"})
        return answer.status_code, answer.json()["error"]

    status, told = asked("auto")
    assert (status, "auto is a policy" in told) == (400, True)
    status, told = asked("claude")
    assert (status, "gives no embeddings there" in told) == (400, True)
    assert asked("nobody")[0] == 404


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (refusing(429, "slow down", retry_after="9"), 429, "rate_limit_exceeded"),
        (refusing(400, "too many tokens"), 400, "context_length_exceeded"),
        (refusing(401, SECRET), 503, "remote_refused"),
        (refusing(404, "no such path"), 400, "unsupported_value"),
        (refusing(500, SECRET), 503, "remote_failed"),
        (stalling, 504, "remote_timeout"),
        (openai_answer(), 503, "remote_garbage"),
        (vectors([0.5]), 503, "remote_garbage"),
        (vectors([0.5], "AAAA"), 503, "remote_garbage"),
        (vectors([0.5], [0.5], [0.5]), 503, "remote_garbage"),
    ],
)
def test_errors_are_told_as_those_of_chats(tmp_path: Path, script: Script, status: int, code: str) -> None:
    with routed(tmp_path, {"far": far(script)}) as fleet:
        error = embed(fleet)
        assert (error.status_code, error.json()["error"]["code"]) == (status, code)
        assert SECRET not in error.text
        assert fleet.spent() == (0, 0)


@pytest.mark.parametrize("usage", [None, "many", 0, 10**9])
def test_a_usage_that_cannot_be_is_estimated(tmp_path: Path, usage: Any) -> None:
    with routed(tmp_path, {"far": far(vectors(*VECTORS, usage=usage))}) as fleet:
        assert 1 <= embed(fleet).json()["usage"]["prompt_tokens"] < 30


def test_a_connection_that_breaks_at_once_is_tried_again(tmp_path: Path) -> None:
    with routed(tmp_path, {"far": far(in_turn(Exchange.cut, vectors(*VECTORS)))}) as fleet:
        assert embed(fleet).status_code == 200


def test_our_own_limits_budgets_and_costs_hold(tmp_path: Path) -> None:
    limited = far(vectors(*VECTORS), requests_per_minute=1)
    with routed(tmp_path, {"far": limited}, budgets={"per_day": 1e-4}) as fleet:
        dear = embed(fleet, x_headrace_max_cost="0.000001")
        assert (dear.status_code, dear.json()["error"]["code"]) == (400, "max_cost")
        assert embed(fleet, given=["word " * 50] * 2).json()["error"]["code"] == "budget_exceeded"
        assert embed(fleet).status_code == 200
        full = embed(fleet)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(full.headers["retry-after"]) > 10
        assert len(fleet.upstreams["far"].exchanges) == 1


def test_failures_open_the_circuit_that_chats_have(tmp_path: Path) -> None:
    with routed(tmp_path, {"far": far(refusing(500))}) as fleet:
        for _ in range(5):
            assert embed(fleet).status_code == 503
        assert fleet.metric("headrace_route_circuit_open", model="far") == 1
        fleet.upstreams["far"].script = vectors(*VECTORS)
        eventually(lambda: embed(fleet).status_code == 200)
        eventually(lambda: fleet.metric("headrace_route_circuit_open", model="far") == 0)


def test_a_key_may_embed_by_the_models_it_lists(tmp_path: Path) -> None:
    callers = keys(tmp_path, alice='models = ["far"]', bob='models = ["near"]')
    with routed(tmp_path, {"far": far(vectors(*VECTORS)), "near": here()}, callers=callers) as fleet:
        for name, status in (("alice", 200), ("bob", 404)):
            assert embed(fleet, x_api_key=key_of(name)).status_code == status


def test_a_long_answer_is_cut_off(tmp_path: Path) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.begin(content_type="application/json")
        while True:
            await exchange.piece(b" " * 2**16)

    with routed(tmp_path, {"far": far(endless, first_token_timeout=5.0)}) as fleet:
        assert embed(fleet).json()["error"]["code"] == "remote_garbage"
