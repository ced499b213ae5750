"""Answers scored in the shadow, while clients are served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from headrace.errors import WorkerUnavailableError
from headrace.gateway.openai.requests import ChatMessage, ChatRequest, ContentPart, Function, Tool
from headrace.gateway.shadow import shadow as shadow_module
from headrace.gateway.shadow.agreement import Agreement
from headrace.gateway.shadow.grader import Ask, Grader
from headrace.gateway.shadow.judge import Judge
from headrace.gateway.shadow.sample import Answered, Sample, as_text
from headrace.gateway.shadow.shadow import Shadow
from headrace.routing.store import Score
from headrace.routing.watch import Watch

MODELS = ("small", "medium", "large")
COSTS = (0.1, 0.4, 1.0)
SECRET = "what nobody else may read"


def a_watch() -> Watch:
    watch = Watch(MODELS, "large", 0.9, shadow=0.1, exploration=1.0)
    watch.earned(1000.0)
    watch.wants_sample(0.9)
    return watch


def sample(watch: Watch, answered: int = 0, answer: str = "4", **more: Any) -> Sample:
    request = ChatRequest(
        model="auto", messages=[ChatMessage(role="user", content=SECRET)], stream=True, **more
    )
    return Sample(
        "answer-1", watch, request, answer, answered, True, np.array([0.5, 0.6, 0.8]), COSTS[-1], COSTS
    )


@dataclass
class Models:
    """Answer "4", but for those that say something else or fail."""

    says: dict[str, str | Exception] = field(default_factory=dict)
    asked: list[tuple[str, ChatRequest]] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def __call__(self, model: str, request: ChatRequest) -> Answered:
        self.asked.append((model, request))
        if self.gate is not None:
            await self.gate.wait()
        said = self.says.get(model, "4")
        if isinstance(said, Exception):
            raise said
        return Answered(said, 2 * COSTS[MODELS.index(model)])


async def done(shadow: Shadow) -> None:
    for _ in range(1000):
        if not shadow._running and not shadow._waiting:
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it never ended")


def score(
    models: Models, *samples: Sample, grader: Grader | None = None, **options: Any
) -> tuple[Shadow, list[Score]]:
    """Offers samples, all of which are drawn, and waits until they are scored."""
    kept: list[Score] = []

    async def work() -> Shadow:
        async with Shadow(
            models, grader or Agreement(), keep=kept.append, draw=lambda: 0.0, **options
        ) as shadow:
            for each in samples:
                shadow.offer(each)
            await done(shadow)
            return shadow

    return asyncio.run(work()), kept


def test_the_models_that_the_watch_wants_to_know_of_are_asked_and_scored() -> None:
    watch, models = a_watch(), Models({"small": "5"})
    shadow, kept = score(models, sample(watch, answered=1))
    assert [model for model, _ in models.asked] == ["large", "small"]
    for model, request in models.asked:
        assert (request.model, request.stream, request.priority) == (model, None, 2**31 - 1)
        assert request.messages[0].content == SECRET
    assert {(each.model, each.score) for each in kept} == {("small", 0), ("medium", 1), ("large", 1)}
    assert {(each.answer, each.source) for each in kept} == {("answer-1", "shadow")}
    assert kept[0].chances == {"small": 0.5, "medium": 0.6, "large": 0.8}
    state = watch.state()
    assert (state.scored, state.samples, shadow.dropped) == (1, 1, 0)
    assert state.realised is None or state.realised.quality == 1


def test_what_it_cost_is_paid_from_the_budget_for_exploration() -> None:
    watch, models = a_watch(), Models()
    spent: list[float] = []

    async def ask(model: str, request: ChatRequest) -> Answered:
        spent.append(watch.state().spent)
        return await models(model, request)

    score(ask, sample(watch, answered=0))  # type: ignore[arg-type]
    assert spent == [1.4, 1.4]  # set aside: what medium and large were expected to cost
    assert watch.state().spent == pytest.approx(2.8)


def test_a_judges_call_is_set_aside_and_paid_too() -> None:
    watch, models = a_watch(), Models({"large": "A: 5"})
    set_aside: list[float] = []

    async def ask(model: str, request: ChatRequest) -> Answered:
        set_aside.append(watch.state().spent)
        return await models(model, request)

    _, kept = score(ask, sample(watch, answered=2, answer="4"), grader=Judge())  # type: ignore[arg-type]
    assert [model for model, _ in models.asked] == ["small", "medium", "large"]
    assert set_aside[0] == pytest.approx(1.5) and watch.state().spent == pytest.approx(3.0)
    assert [each.score for each in kept] == [0.5] * 3


def test_only_the_share_that_the_watch_wants_is_scored() -> None:
    watch, models = a_watch(), Models()
    draws = iter(np.linspace(0, 1, 100, endpoint=False).tolist())

    async def work() -> int:
        async with Shadow(models, Agreement(), draw=lambda: next(draws), most_waiting=100) as shadow:
            wanted = sum(shadow.offer(sample(watch)) for _ in range(100))
            await done(shadow)
            return wanted

    assert asyncio.run(work()) == watch.state().scored == 50  # a tenth, and more while little is known


@pytest.mark.parametrize(
    "more",
    [{"n": 2}, {"tools": [Tool("function", Function("look"))]}, {"continue_final_message": True}],
)
def test_answers_that_are_not_one_text_are_left_out(more: dict[str, Any]) -> None:
    watch, models = a_watch(), Models()
    score(models, sample(watch, **more))
    assert not models.asked and watch.state().spent == 0


def test_where_the_best_model_is_the_cheapest_there_is_nothing_to_find_out() -> None:
    watch = Watch(MODELS, "small", 0.9, shadow=1.0)
    models = Models()
    score(models, sample(watch, answered=0))
    assert not models.asked and watch.state().spent == 0


def test_without_the_best_models_answer_nothing_is_scored_and_nothing_asked() -> None:
    watch, models = a_watch(), Models({"large": WorkerUnavailableError("no worker")})
    shadow, kept = score(models, sample(watch))
    assert [model for model, _ in models.asked] == ["large"]
    assert (kept, watch.state().scored, shadow.dropped) == ([], 0, 1)
    assert watch.state().spent == pytest.approx(0)


def test_a_cheaper_model_that_fails_leaves_a_hole() -> None:
    watch, models = a_watch(), Models({"medium": WorkerUnavailableError("no worker")})
    _, kept = score(models, sample(watch))
    assert {each.model for each in kept} == {"small", "large"}
    assert watch.state().samples == 1


class Grading(Grader):
    """Says what it is told to."""

    def __init__(self, grade: Callable[[], dict[str, float]]) -> None:
        self._grade = grade

    async def grade(self, question: str, answers: Mapping[str, str], best: str, ask: Ask) -> dict[str, float]:
        return self._grade()


def fail() -> dict[str, float]:
    raise KeyError(SECRET)


def leave() -> dict[str, float]:
    raise SystemExit(2)


def say_nothing() -> Any:
    return None


@pytest.mark.parametrize(
    "grade",
    [
        fail,
        leave,
        say_nothing,
        dict,
        lambda: {"large": 7.0, "small": -1.0},
        lambda: {"large": float("nan")},
        lambda: {"other": 1.0},
    ],
)
def test_a_grader_that_fails_or_says_nonsense_scores_nothing_and_tells_no_texts(
    grade: Callable[[], dict[str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    watch = a_watch()
    with caplog.at_level(logging.DEBUG):
        shadow, kept = score(Models(), sample(watch, answer=SECRET), grader=Grading(grade))
    assert (kept, watch.state().scored, shadow.dropped) == ([], 0, 1)
    assert watch.state().spent == pytest.approx(2.8)
    assert SECRET not in caplog.text


def test_while_the_server_is_busy_nothing_is_begun() -> None:
    watch, models = a_watch(), Models()
    shadow, _ = score(models, sample(watch), busy=lambda: True)
    assert (models.asked, shadow.dropped, watch.state().spent) == ([], 1, 0)
    moods = iter([False, True])
    shadow, _ = score(models, sample(watch), busy=lambda: next(moods))
    assert (models.asked, shadow.dropped) == ([], 1)
    assert watch.state().spent == pytest.approx(0)


def whole(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 10)

    asyncio.run(bounded())


def test_few_are_scored_at_once_and_few_wait() -> None:
    async def work() -> None:
        watch, models = a_watch(), Models(gate=asyncio.Event())
        async with Shadow(models, Agreement(), at_once=2, most_waiting=3, draw=lambda: 0.0) as shadow:
            taken = sum(shadow.offer(sample(watch)) for _ in range(8))
            await asyncio.sleep(0.01)
            assert (taken, shadow.dropped, len(models.asked)) == (5, 3, 2)
            assert models.gate is not None
            models.gate.set()
            await done(shadow)
            assert watch.state().scored == 5

    whole(work)


def test_its_end_cancels_what_is_under_way_and_pays_back_what_was_set_aside() -> None:
    async def work() -> None:
        watch, models = a_watch(), Models(gate=asyncio.Event())
        async with Shadow(models, Agreement(), draw=lambda: 0.0) as shadow:
            for _ in range(5):
                shadow.offer(sample(watch))
            await asyncio.sleep(0.01)
        assert not shadow._running and len(models.asked) == 2
        assert (watch.state().scored, watch.state().spent) == (0, pytest.approx(0))

    whole(work)


def test_a_watch_that_has_learnt_is_told_of_now_and_then_so_that_it_can_be_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = a_watch(), a_watch()
    learnt: list[Watch] = []
    score(Models(), sample(one), sample(other), sample(one), learnt=learnt.append)
    assert sorted(map(id, learnt)) == sorted(map(id, (one, other)))

    async def work() -> None:
        monkeypatch.setattr(shadow_module, "_TELL_SECONDS", 0.01)
        async with Shadow(Models(), Agreement(), draw=lambda: 0.0, learnt=learnt.append) as shadow:
            for number in range(3, 5):
                shadow.offer(sample(one))
                await done(shadow)
                while len(learnt) < number:
                    await asyncio.sleep(0.005)

    whole(work)
    assert learnt[2:] == [one, one]


def test_a_conversation_is_read_as_text() -> None:
    turns = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content=[ContentPart("text", "What is "), ContentPart("text", "this?")]),
        ChatMessage(role="assistant"),
    ]
    request = ChatRequest(model="auto", messages=turns)
    assert as_text(request) == "system: Be brief.\n\nuser: What is this?\n\nassistant: "
    assert as_text(ChatRequest(model="auto", messages=turns[:1])) == "Be brief."
