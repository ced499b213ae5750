"""What a request may ask of its route, by body and by headers, and what money and keys allow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.remotes.upstream import openai_answer, refusing
from gateway.routed.fleet import (
    DEAR,
    DIALECTS,
    FAR_FIRST,
    HI,
    Fleet,
    eventually,
    far,
    here,
    key_of,
    keys,
    routed,
    slowly,
    text_of,
)
from headrace.gateway.header_names import ASKING, TELLING
from headrace.routing import budget

USED_UP = {"per_day": 1e-9}


def two(near_cost: float = DEAR) -> dict[str, Any]:
    return {"near": here(cost_per_hour=near_cost), "far": far(openai_answer())}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """For tests that do not disturb each other."""
    with routed(tmp_path_factory.mktemp("fleet"), two(), policies=FAR_FIRST) as fleet:
        yield fleet


@pytest.mark.parametrize("dialect", DIALECTS)
def test_models_are_named_in_the_body_of_every_dialect(fleet: Fleet, dialect: str) -> None:
    answer = fleet.post(dialect, headrace={"models": ["near"]})
    assert answer.headers["x-headrace-model"] == "near"
    assert fleet.post(dialect, x_headrace_models="near").headers["x-headrace-model"] == "near"
    both = fleet.post(dialect, headrace={"models": ["far"]}, x_headrace_models="near")
    assert both.headers["x-headrace-model"] == "far"


def test_what_an_answers_headers_tell_may_be_sent_back(fleet: Fleet) -> None:
    told = {n: v for n, v in fleet.chat().headers.items() if n.startswith("x-headrace-")}
    assert set(told) == {name.decode() for name in TELLING}
    assert fleet.chat(**{name.replace("-", "_"): value for name, value in told.items()}).status_code == 200


def test_every_header_is_in_the_documents() -> None:
    documents = Path(__file__).parents[3].joinpath("docs").glob("*.md")
    known = "\n".join(file.read_text(encoding="utf-8") for file in documents)
    assert [name for name in sorted(ASKING | TELLING) if f"`{name.decode()}" not in known] == []


def test_all_that_a_route_may_be_asked_for_by_headers_is_known_at_the_front(fleet: Fleet) -> None:
    asked = {
        "quality": "0.5",
        "max_first_token_ms": "1e6",
        "min_tokens_per_second": "0.1",
        "max_cost": "9",
        "models": "near,far",
        "timeout": "9",
        "explain": "prefix",
        "cache_salt": "x",
    }
    answer = fleet.chat(**{f"x_headrace_{name}": value for name, value in asked.items()})
    assert answer.status_code == 200, answer.text
    assert {f"x-headrace-{name.replace('_', '-')}".encode() for name in asked} == ASKING


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"x_headrace_quality": "most"}, "x-headrace-quality"),
        ({"x_headrace_quality": "0"}, "x-headrace-quality"),
        ({"x_headrace_max_first_token_ms": "-1"}, "x-headrace-max-first-token-ms"),
        ({"x_headrace_min_tokens_per_second": "nan"}, "x-headrace-min-tokens-per-second"),
        ({"x_headrace_max_cost": "1 EUR"}, "x-headrace-max-cost"),
        ({"x_headrace_models": ","}, "x-headrace-models"),
        ({"headrace": {"quality": 1.1}}, "headrace.quality"),
        ({"headrace": {"max_first_token_ms": 0}}, "headrace.max_first_token_ms"),
        ({"headrace": {"quantity": 1}}, "headrace"),
        ({"headrace": {"models": []}}, "headrace.models"),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_cannot_be_understood_is_named(
    fleet: Fleet, dialect: str, fields: dict[str, Any], named: str
) -> None:
    answer = fleet.post(dialect, **fields)
    assert answer.status_code == 400
    assert named in answer.text


def test_a_model_that_the_policy_does_not_have_is_told(fleet: Fleet) -> None:
    answer = fleet.chat(headrace={"models": ["near", "other"]})
    assert answer.status_code == 404
    assert "'other'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_cost_that_no_model_keeps_is_refused_with_the_least_that_one_may_cost(
    fleet: Fleet, dialect: str
) -> None:
    answer = fleet.post(dialect, headrace={"max_cost": 1e-9})
    assert answer.status_code == 400
    assert "max_cost of 0.000000001 is too low: far, the cheapest, may cost " in answer.text
    assert fleet.post(dialect, headrace={"max_cost": 0.01}).status_code == 200


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_budget_that_is_used_up_is_told_with_what_is_left(tmp_path: Path, dialect: str) -> None:
    with routed(tmp_path, two(), policies=FAR_FIRST, budgets=USED_UP) as fleet:
        answer = fleet.post(dialect)
        assert answer.status_code == 402
        assert "0.000000001 left" in answer.text
        assert "budget" in answer.text
        if dialect == "anthropic":
            assert answer.json()["error"]["type"] == "billing_error"
        assert fleet.spent() == (0, 0)
        assert not fleet.upstreams["far"].exchanges and not fleet.engines["near"].submitted


def test_the_budget_that_has_no_room_is_named(tmp_path: Path) -> None:
    callers = keys(tmp_path, alice="", bob="")
    budgets = {"keys": {"alice": 1e-9}, "per_key_day": 1.0, "per_request": 0.01}
    with routed(tmp_path, two(), policies=FAR_FIRST, budgets=budgets, callers=callers) as fleet:
        for model in ("auto", "far"):
            told = fleet.chat(model, key=key_of("alice"), max_tokens=10)
            assert told.status_code == 402
            assert "far: over the budget keys.alice (0.000000001 left; may cost" in told.text
            told = fleet.chat(model, key=key_of("bob"), max_tokens=100_000)
            assert (told.status_code, told.json()["error"]["code"]) == (400, "max_cost")
            assert "far: over per_request (0.01; may cost 0.1" in told.text


def test_what_open_requests_may_give_back_is_worth_another_try(tmp_path: Path) -> None:
    models = {"far": far(slowly(0.1))}
    budgets = {"per_day": 0.00015}
    with routed(tmp_path, models, policies={"auto": {}}, budgets=budgets) as fleet:
        body = {"model": "far", "messages": HI, "max_tokens": 40, "stream": True}
        with fleet.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            told = fleet.chat(max_tokens=40)
            assert (told.status_code, told.headers["retry-after"]) == (402, "1")
            assert "more set aside for requests that have not ended; may cost" in told.text
            assert answer.status_code == 200


def test_what_costs_nothing_is_answered_whatever_the_budget(tmp_path: Path) -> None:
    with routed(tmp_path, two(near_cost=0.0), policies=FAR_FIRST, budgets=USED_UP) as fleet:
        assert fleet.chat().headers["x-headrace-model"] == "near"
        assert fleet.chat("near").status_code == 200
        assert fleet.chat("far").status_code == 402


def test_each_key_has_its_budget(tmp_path: Path) -> None:
    callers = keys(tmp_path, alice="", bob="")
    budgets = {"keys": {"alice": 1.0}, "per_key_day": 1e-9}
    with routed(tmp_path, two(), policies=FAR_FIRST, budgets=budgets, callers=callers) as fleet:
        assert fleet.chat(key=key_of("alice")).status_code == 200
        assert fleet.chat(key=key_of("bob")).status_code == 402
        assert fleet.chat("far", key=key_of("bob")).status_code == 402


def test_a_key_asks_only_what_it_may(tmp_path: Path) -> None:
    callers = keys(
        tmp_path,
        near='models = ["near"]',
        auto='models = ["auto"]',
        none='models = ["something"]',
        all="",
    )
    with routed(tmp_path, two(), policies=FAR_FIRST, callers=callers) as fleet:
        assert fleet.chat(key=key_of("near")).headers["x-headrace-attempts"] == "near"
        assert fleet.chat(key=key_of("auto")).headers["x-headrace-attempts"] == "far"
        assert fleet.chat(key=key_of("all")).headers["x-headrace-attempts"] == "far"
        refused = [
            fleet.chat(key=key_of("near"), headrace={"models": ["far"]}),
            fleet.chat("far", key=key_of("near")),
            fleet.chat("far", key=key_of("auto")),
            fleet.chat(key=key_of("none")),
        ]
        assert [(each.status_code, each.json()["error"]["code"]) for each in refused] == 4 * [
            (404, "model_not_found")
        ]
        assert fleet.chat().status_code == 401
        assert len(fleet.upstreams["far"].exchanges) == 2


def test_a_fallback_keeps_to_what_the_key_may_ask(tmp_path: Path) -> None:
    callers = keys(tmp_path, far='models = ["far"]')
    models = {"near": here(cost_per_hour=DEAR), "far": far(refusing(500))}
    with routed(tmp_path, models, policies=FAR_FIRST, callers=callers) as fleet:
        assert fleet.chat(key=key_of("far")).status_code == 503
        assert not fleet.engines["near"].submitted


def test_attempts_together_keep_the_cost_that_is_asked_for(tmp_path: Path) -> None:
    models = {
        "far": far(openai_answer(["word "] * 25), input_price=100.0, output_price=100.0),
        "near": here(cost_per_hour=DEAR),
    }
    policies = {"auto": {"kind": "gateway.routed.policies:AsListed", "options": {"accept": 1.0, "steps": 2}}}
    with routed(tmp_path, models, policies=policies) as fleet:
        most = {each["model"]: each["most_cost"] for each in fleet.explain()["candidates"]}
        enough = fleet.chat(headrace={"max_cost": sum(most.values())})
        assert enough.headers["x-headrace-attempts"] == "far,near"
        little = fleet.chat(headrace={"max_cost": max(most.values())})
        assert (little.status_code, little.headers["x-headrace-attempts"]) == (200, "far")
        assert float(little.headers["x-headrace-cost"]) <= max(most.values())
        assert text_of("chat", little).startswith("word word")


def asked_in_turn(fleet: Fleet) -> str:
    answer = fleet.chat()
    assert answer.status_code == 200, answer.text
    return answer.headers["x-headrace-attempts"]


def test_costs_are_told_in_whole_billionths(tmp_path: Path) -> None:
    models = {"far": far(openai_answer(usage=(7, 3)), input_price=0.0123456, output_price=0.7654321)}
    with routed(tmp_path, models, policies={"auto": {}}) as fleet:
        (candidate,) = fleet.explain(max_tokens=7)["candidates"]
        told = [candidate["cost"], candidate["most_cost"]]
        told.append(fleet.chat().json()["usage"]["headrace"]["cost"])
        assert all(len(f"{cost:.15f}".rstrip("0")) <= len("0.") + 9 for cost in told)
        assert told[-1] == 0.000002383


def test_a_policy_of_the_users_is_followed(tmp_path: Path) -> None:
    policies = {"auto": {"kind": "gateway.routed.policies:AsListed"}}
    with routed(tmp_path, two(), policies=policies) as fleet:
        assert asked_in_turn(fleet) == "near"
        assert fleet.chat().headers["x-headrace-why"] == "as they are listed"


@pytest.mark.parametrize(
    "policy",
    [
        {"kind": "gateway.routed.policies:Raising"},
        {"kind": "gateway.routed.policies:Greedy"},
        {"kind": "gateway.routed.policies:Anything"},
        *(
            {"kind": "gateway.routed.policies:Anything", "options": options}
            for options in (
                {"order": ["nobody"]},
                {"order": []},
                {"order": ["near", "near"]},
                {"order": 7},
                {"why": 7},
                {"hedge_after": -1.0},
                {"hedge_after": "soon"},
                {"accept": 0.5, "steps": 7},
                {"accept": "yes", "steps": 1},
            )
        ),
    ],
    ids=str,
)
def test_a_policy_that_fails_is_replaced_by_the_cheapest(tmp_path: Path, policy: dict[str, Any]) -> None:
    with routed(tmp_path, two(), policies={"auto": policy | {"quality": 0.01}}) as fleet:
        assert asked_in_turn(fleet) == "far"


def test_ahead_of_the_days_pace_the_cheapest_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {"auto": {"kind": "best-in-budget", "pace": True, "quality": 0.01}}
    with routed(tmp_path, two(), policies=policies) as fleet:
        assert fleet.chat().headers["x-headrace-why"] == "best of 2 with quality 0.01"
        monkeypatch.setattr(budget, "allowance", lambda budget, now: 0)
        answer = fleet.chat()
        assert answer.headers["x-headrace-model"] == "far"
        assert answer.headers["x-headrace-why"].startswith("ahead of the day's pace: cheapest of 2")


def test_a_policy_of_the_users_exceeds_no_cost_that_is_asked_for(tmp_path: Path) -> None:
    policies = {"auto": {"kind": "gateway.routed.policies:AsListed", "quality": 0.01}}
    with routed(tmp_path, two(), policies=policies) as fleet:
        most = {each["model"]: each["most_cost"] for each in fleet.explain()["candidates"]}
        assert most["near"] > most["far"]
        answer = fleet.chat(headrace={"max_cost": most["far"]})
        assert answer.headers["x-headrace-attempts"] == "far"
        eventually(lambda: fleet.spent()[1] == 0)


def test_no_answer_costs_more_than_it_was_said_to_cost_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even of a prompt whose every letter is a token, where most tokens have four."""
    messages = [{"role": "user", "content": "0" * 400}]
    with routed(tmp_path, two(), policies=FAR_FIRST) as fleet:
        for model, fields in (("auto", {}), ("near", {}), ("near", {"max_tokens": None}), ("near", {"n": 3})):
            asked: dict[str, Any] = {"messages": messages, **fields}
            most = fleet.explain(**asked, model=model)["candidates"][-1]["most_cost"]
            answer = fleet.chat(model, **asked)
            assert answer.status_code == 200
            assert 0 < float(answer.headers["x-headrace-cost"]) <= most
        eventually(lambda: fleet.spent()[1] == 0)
    assert "more than" not in caplog.text
