"""When a first token will come is foreseen, also of requests that wait for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import pytest

from gateway.routed.fleet import DEAR, Fleet, eventually, here, routed
from headrace.gateway.openai.requests import ChatMessage, ChatRequest
from headrace.gateway.routed.member import Foreseen, Outcome
from headrace.gateway.routed.need import need_of
from headrace.gateway.waiting_room import Capacity

CLIENTS, ROUNDS = 4, 8


def keep_busy(fleet: Fleet) -> None:
    """Some clients, each of which asks again once it is answered."""

    def client(number: int) -> None:
        for turn in range(ROUNDS):
            tokens = 4 if (number + turn) % 3 else 40
            assert fleet.chat(stream=True, max_tokens=tokens).status_code == 200

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(client, range(CLIENTS)))


@pytest.fixture
def flooded(tmp_path: Path) -> Iterator[Fleet]:
    """A cheap model that answers one request at a time, and another, both alike in quality."""
    tiers = {
        "cheap": here(step_seconds=0.005, cost_per_hour=1.0, estimate_as="cheap"),
        "quick": here(step_seconds=0.005, cost_per_hour=DEAR, estimate_as="cheap"),
    }
    with routed(tmp_path, tiers) as fleet:
        fleet.gateway.admission.capacity = Capacity(1)
        yield fleet


def test_the_time_until_a_request_has_its_turn_is_foreseen(flooded: Fleet) -> None:
    """How well, `make route-latency` measures."""
    keep_busy(flooded)
    known = flooded.decisions(CLIENTS * ROUNDS)[-CLIENTS * ROUNDS // 2 :]
    assert {each["model"] for each in known} == {"cheap"}, "nobody asked for more than that"
    in_turn = median(each["predicted_first_token"] for each in known)
    (alone,) = (c["first_token_ms"] for c in flooded.explain()["candidates"] if c["model"] == "cheap")
    assert in_turn > 3 * alone / 1e3, "three others were before it"


def test_a_wrong_guess_of_the_wait_spoils_no_other_prediction(flooded: Fleet) -> None:
    member = flooded.routes.members["cheap"]
    request = ChatRequest(model="auto", messages=[ChatMessage("user", "Hi")])
    need = need_of(request)
    guess = Foreseen(10, 1.01, 1.01, 0.01, uncorrected=0.01, uncorrected_wait=1.0)
    for second in range(40):
        member.learn(Outcome(need, guess, 10, 0, 4, False, 0.11, 0.1, 0.01), float(second))
    assert asyncio.run(member.foresee(need, request, False)).first_token == pytest.approx(0.01, rel=0.1)


def test_a_request_that_cannot_wait_goes_where_nobody_waits(flooded: Fleet) -> None:
    with ThreadPoolExecutor(1) as beside:
        flood = beside.submit(keep_busy, flooded)
        eventually(lambda: flooded.gateway.admission.room("cheap").held > 0)
        hurried = flooded.chat(stream=True, max_tokens=4, x_headrace_max_first_token_ms=50)
        flood.result()
    assert hurried.headers["x-headrace-model"] == "quick"
