"""POST /v1/feedback: scores by those who asked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette

from headrace.gateway.admission import Admission
from headrace.gateway.callers import Callers
from headrace.gateway.error_words import refuse
from headrace.gateway.front import Front
from headrace.gateway.shadow.feedback import Given, Recent, feedback_routes
from headrace.gateway.state import Gateway
from headrace.routing.store import Score
from headrace.routing.watch import Watch

KEYS = {"alice": "alices-very-own-key", "bob": "bobs-very-own-key!"}


class Asked:
    """An application with the endpoint, two keys, and one answer that alice got."""

    def __init__(self, folder: Path) -> None:
        file = folder / "keys.toml"
        file.write_text("".join(f"[keys.{name}]\nkey = '{key}'\n" for name, key in KEYS.items()))
        gateway = Gateway({}, Admission(8), 2**16, callers=Callers(file))
        self.watch = Watch(("small", "large"), "large", 0.95)
        self.recent = Recent(most=4)
        given = Given("chatcmpl-1", self.watch, 0, np.array([0.5, 0.8]))
        self.recent.add(given, "alice", "chatcmpl-1", "req-7")
        self.kept: list[Score] = []
        routes = feedback_routes(gateway, lambda: self.recent, self.kept.append)
        self._app = Front(Starlette(routes=routes), gateway.callers, clock=time.monotonic, refuse=refuse)

    def post(self, body: object, key: str | None = KEYS["alice"]) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)  # type: ignore[arg-type]
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return await client.post("/v1/feedback", json=body, headers=headers)

        return asyncio.run(send())


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


def test_a_score_reaches_the_watch_and_is_kept(asked: Asked) -> None:
    answer = asked.post({"id": "chatcmpl-1", "score": 0.25})
    assert answer.status_code == 200
    assert answer.json() == {"id": "chatcmpl-1", "model": "small", "score": 0.25}
    state = asked.watch.state()
    assert (state.feedback, state.received) == (1, 0.25 / 0.8)
    (kept,) = asked.kept
    assert (kept.answer, kept.model, kept.score, kept.source) == ("chatcmpl-1", "small", 0.25, "feedback")
    assert kept.chances == {"small": 0.5, "large": 0.8}


@pytest.mark.parametrize(("said", "score"), [(True, 1.0), (False, 0.0), (1, 1.0), (0, 0.0), (0.5, 0.5)])
def test_yes_and_no_are_scores_too_and_a_requests_id_will_do(
    asked: Asked, said: object, score: float
) -> None:
    assert asked.post({"id": "req-7", "score": said}).json()["score"] == score
    assert asked.kept[0].answer == "chatcmpl-1"


def test_who_changes_their_mind_is_heard_but_counts_once(asked: Asked) -> None:
    for score in (1.0, 0.0):
        assert asked.post({"id": "chatcmpl-1", "score": score}).status_code == 200
    assert asked.watch.state().feedback == 1
    assert [each.score for each in asked.kept] == [1.0, 0.0]


def test_to_others_an_answer_is_not_there(asked: Asked) -> None:
    for body, key in (
        ({"id": "chatcmpl-1", "score": 1}, KEYS["bob"]),
        ({"id": "other", "score": 1}, KEYS["alice"]),
    ):
        answer = asked.post(body, key)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "id")
        assert answer.json()["error"]["code"] == "answer_not_found"
    assert asked.post({"id": "chatcmpl-1", "score": 1}, key=None).status_code == 401
    assert not asked.kept


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"score": 1}, "id"),
        ({"id": "chatcmpl-1"}, "score"),
        ({"id": "chatcmpl-1", "score": 1.5}, "score"),
        ({"id": "chatcmpl-1", "score": -1}, "score"),
        ({"id": "chatcmpl-1", "score": "good"}, "score"),
        ({"id": "chatcmpl-1", "score": None}, "score"),
        ({"id": "", "score": 1}, "id"),
        ({"id": "x" * 300, "score": 1}, "id"),
        ({"id": "chatcmpl-1", "score": 1, "comment": "nice"}, "comment"),
    ],
)
def test_a_wrong_field_is_named(asked: Asked, body: dict[str, Any], named: str) -> None:
    answer = asked.post(body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert not asked.kept


def test_only_so_many_answers_are_remembered(asked: Asked) -> None:
    for number in range(2, 4):
        given = Given(f"chatcmpl-{number}", asked.watch, 1, np.array([0.5, 0.8]))
        asked.recent.add(given, "alice", f"chatcmpl-{number}", f"req-{number}")
    assert asked.post({"id": "chatcmpl-1", "score": 1}).status_code == 404
    assert asked.post({"id": "chatcmpl-3", "score": 1}).json()["model"] == "large"
