"""The cheap model first: its answer is given where it was sure enough, else the next one's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.remotes.upstream import openai_answer, refusing
from gateway.routed.fleet import (
    DEAR,
    DIALECTS,
    SECRET,
    cut_after,
    eventually,
    far,
    here,
    routed,
    text_of,
    usage_of,
)

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
SURE, UNSURE = 0.5, 0.7
"""Below and above e to -0.5: how likely the fake engine's tokens are to it."""


def cascade(accept: float) -> dict[str, Any]:
    return {"auto": {"kind": "cascade", "accept": accept}}


def models(**strong: Any) -> dict[str, Any]:
    return {
        "weak": here(answer="I guess.", cost_per_hour=10.0),
        "strong": strong or here(answer="I know!", cost_per_hour=DEAR),
    }


@pytest.mark.parametrize("dialect", DIALECTS)
@BOTH_WAYS
def test_a_sure_answer_is_accepted(tmp_path: Path, dialect: str, stream: bool) -> None:
    with routed(tmp_path, models(), policies=cascade(SURE)) as fleet:
        answer = fleet.post(dialect, stream=stream)
        assert text_of(dialect, answer) == "I guess."
        assert answer.headers["x-headrace-attempts"] == "weak"
        assert "cascade" in answer.headers["x-headrace-why"]
        assert "-0.5" not in answer.text
        assert not fleet.engines["strong"].submitted
        # The answer is complete before the client gets any of it, so what it cost is known.
        assert float(answer.headers["x-headrace-cost"]) > 0


@pytest.mark.parametrize("dialect", DIALECTS)
@BOTH_WAYS
def test_of_an_unsure_answer_the_client_sees_nothing_but_its_cost(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    with routed(tmp_path, models(), policies=cascade(UNSURE)) as fleet:
        answer = fleet.post(dialect, stream=stream)
        assert text_of(dialect, answer) == "I know!"
        assert "guess" not in answer.text
        assert answer.headers["x-headrace-attempts"] == "weak,strong"
        assert answer.headers["x-headrace-why"] == "the answers of cheaper models were not sure enough"
        report = usage_of(dialect, answer)["headrace"]
        assert (report["model"], report["attempts"]) == ("strong", ["weak", "strong"])
        (decision,) = fleet.decisions()
        assert (decision["cascaded"], decision["fell_back"], decision["status"]) == (1, 0, "ok")
        eventually(lambda: fleet.spent()[1] == 0)
        spent = fleet.spent()[0]
        assert spent == pytest.approx(report["cost"] * 1e9, abs=2)
        alone = fleet.metric("headrace_route_cost_total", model="strong") * 1e9
        assert 0 < alone < spent
        assert fleet.metric("headrace_route_turns_total", turn="cascade") == 1


@BOTH_WAYS
def test_an_unsure_answer_is_better_than_none(tmp_path: Path, stream: bool) -> None:
    strong = far(refusing(500), input_price=1e4, output_price=1e4)
    with routed(tmp_path, models(**strong), policies=cascade(UNSURE)) as fleet:
        answer = fleet.chat(stream=stream)
        assert text_of("chat", answer) == "I guess."
        assert answer.headers["x-headrace-attempts"] == "weak,strong"
        assert answer.headers["x-headrace-why"] == "strong failed; weak answers, though not sure enough"
        assert fleet.decisions()[0]["status"] == "ok"


@BOTH_WAYS
def test_a_cheap_model_that_fails_is_followed_by_the_next(tmp_path: Path, stream: bool) -> None:
    three = models() | {"weak": far(cut_after(["I ", "am "]), input_price=0.01, output_price=0.01)}
    with routed(tmp_path, three, policies=cascade(SURE)) as fleet:
        answer = fleet.chat(stream=stream)
        assert text_of("chat", answer) == "I know!"
        assert answer.headers["x-headrace-attempts"] == "weak,strong"
        assert answer.headers["x-headrace-why"] == "weak failed; strong followed"


def test_logprobs_that_a_client_asks_for_are_there(tmp_path: Path) -> None:
    with routed(tmp_path, models(), policies=cascade(SURE)) as fleet:
        answer = fleet.chat(logprobs=True, top_logprobs=1)
        told = answer.json()["choices"][0]["logprobs"]["content"]
        assert "".join(each["token"] for each in told[:-1]) == "I guess."
        assert len(told[0]["top_logprobs"]) == 1


@pytest.mark.parametrize("accept", [SURE, UNSURE])
def test_several_choices_are_judged_together(tmp_path: Path, accept: float) -> None:
    with routed(tmp_path, models(), policies=cascade(accept)) as fleet:
        answer = fleet.chat(n=3)
        texts = [choice["message"]["content"] for choice in answer.json()["choices"]]
        assert texts == 3 * ["I guess." if accept == SURE else "I know!"]


def test_a_remote_that_tells_no_logprobs_is_judged_by_its_estimate(tmp_path: Path) -> None:
    two = models() | {"weak": far(openai_answer(), input_price=0.01, output_price=0.01)}
    with routed(tmp_path, two, policies=cascade(0.01)) as fleet:
        assert fleet.chat().headers["x-headrace-attempts"] == "weak"
    with routed(tmp_path / "more", two, policies=cascade(1.0)) as fleet:
        assert fleet.chat().headers["x-headrace-attempts"] == "weak,strong"
        assert SECRET not in fleet.chat().text
