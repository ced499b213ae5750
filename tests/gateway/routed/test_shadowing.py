"""What is learnt of answers behind clients' backs, and from clients: the shadow and feedback over a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.remotes.upstream import openai_answer
from gateway.routed.fleet import Fleet, eventually, far, here, key_of, keys, routed

ALL_SCORED = {"shadow": 1.0, "exploration_budget": 1.0, "grader": "agreement"}
MODELS: dict[str, Any] = {
    "cheap": far(openai_answer(["The answer is ", "4."])),
    "dear": far(openai_answer(["The answer is ", "5."]), input_price=50.0, output_price=50.0),
}
EASY = {"auto": {"quality": 0.1}}
"""Whatever is asked, the cheap model will do."""


def scored(fleet: Fleet) -> float:
    return fleet.metric("headrace_route_shadow_scored", policy="auto")


def test_an_answer_is_compared_with_the_best_models_and_the_watch_is_told(tmp_path: Path) -> None:
    with routed(tmp_path, MODELS, policies=EASY, routing=ALL_SCORED) as fleet:
        for _ in range(3):  # the first ones earn what the shadow may spend
            assert fleet.chat().headers["x-headrace-model"] == "cheap"
        eventually(lambda: scored(fleet) >= 1)
        assert fleet.metric("headrace_route_shadow_cost", policy="auto") > 0
        assert fleet.metric("headrace_route_shadow_dropped_total") == 0
        asked = [exchange.body["messages"] for exchange in fleet.upstreams["dear"].exchanges]
        assert asked and asked[0] == [{"role": "user", "content": "Hi"}]
        scores = {(score.model, score.score) for score in eventual_scores(fleet)}
        assert scores == {("cheap", 0.0), ("dear", 1.0)}
        paid = fleet.routes.store.ledger.spent(today(fleet), "(shadow)").key
        assert paid == pytest.approx(1e9 * fleet.metric("headrace_route_shadow_cost"), rel=0.01)


def eventual_scores(fleet: Fleet) -> list[Any]:
    def read() -> list[Any]:
        fleet.routes.store.flush()
        return fleet.routes.store.scores(2)

    eventually(lambda: len(read()) == 2)
    return read()


def today(fleet: Fleet) -> int:
    return int(fleet.decisions()[0]["time"] // 86400)


def test_a_key_that_may_not_ask_the_best_model_is_scored_by_nobody(tmp_path: Path) -> None:
    callers = keys(tmp_path, ann='models = ["cheap"]')
    with routed(tmp_path, MODELS, policies=EASY, routing=ALL_SCORED, callers=callers) as fleet:
        for _ in range(3):
            assert fleet.chat(key=key_of("ann")).status_code == 200
        fleet.decisions(3)
        assert not fleet.upstreams["dear"].exchanges


def test_a_client_scores_its_answer_by_either_id(tmp_path: Path) -> None:
    with routed(tmp_path, MODELS, policies=EASY) as fleet:
        answer = fleet.chat(x_request_id="mine-1")
        for known in (answer.json()["id"], "mine-1"):
            told = fleet.client.post("/v1/feedback", json={"id": known, "score": 0.5})
            assert (told.status_code, told.json()["model"]) == (200, "cheap")
        assert fleet.metric("headrace_route_feedback", policy="auto") == 1
        unknown = fleet.client.post("/v1/feedback", json={"id": "other", "score": 1})
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "id")


def test_feedback_where_nothing_is_routed_is_a_404(tmp_path: Path) -> None:
    with routed(tmp_path, {"near": here()}) as fleet:
        answer = fleet.chat("near")
        told = fleet.client.post("/v1/feedback", json={"id": answer.json()["id"], "score": 1})
        assert told.status_code == 404


def test_what_the_watch_has_learnt_survives_a_restart(tmp_path: Path) -> None:
    with routed(tmp_path, MODELS, policies=EASY, routing=ALL_SCORED) as fleet:
        for _ in range(3):
            fleet.chat()
        eventually(lambda: scored(fleet) >= 1)
        before = scored(fleet)
    with routed(tmp_path, MODELS, policies=EASY, routing=ALL_SCORED) as fleet:
        assert scored(fleet) >= before
