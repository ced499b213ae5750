"""Answers compared with the best model's."""

from __future__ import annotations

import asyncio

import pytest

from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.shadow.agreement import Agreement, overlap
from headrace.gateway.shadow.final_answer import final_answer

CODE = "Sure:\n```python\ndef add(a, b):\n    return a + b\n```\n"
SAME_CODE = "```python\n# adds\n\ndef add( a,b ):\n        return a+b  # the sum\n```"


async def never(request: ChatRequest) -> str:
    raise AssertionError("no model is asked")


def agreement(best: str, other: str, question: str = "") -> float | None:
    graded = asyncio.run(Agreement().grade(question, {"small": other, "large": best}, "large", never))
    assert graded.get("large", 1.0) == 1.0
    return graded.get("small")


@pytest.mark.parametrize(
    ("best", "other"),
    [
        ("2 + 2 is 4.\n#### 4", "Let us see. So we get\n#### 4.00"),
        ("It is \\boxed{\\text{12}}.", "Step 1 ...\nThe answer is $12."),
        ("#### 1,250", "The final answer is: **1250 dollars**"),
        ("B", "(B)"),
        ("Answer: B", "B. A whale is a mammal, and no mammal lays such eggs in the sea"),
        (
            "<think>\nPerhaps C? The answer is C.\n</think>\n\nB",
            "I am sure that option B is meant by this question",
        ),
        ("Paris", "The capital of France is, as everyone knows, Paris."),
        ("paris.", "Paris"),
        (CODE, SAME_CODE),
        ("\\boxed{\\frac{1}{2}}", "so \\boxed{\\frac{1}{2}}"),
    ],
)
def test_what_means_the_same_agrees(best: str, other: str) -> None:
    assert agreement(best, other) == 1.0


@pytest.mark.parametrize(
    ("best", "other"),
    [
        ("#### 4", "#### 5"),
        ("#### 4", "#### 14"),
        ("#### 4", "I cannot say."),
        ("B", "C"),
        ("B", "A baby is a small person, and so is a large one"),
        ("Paris", "The capital of France is, as everyone knows, London."),
        ("Yes", "No"),
        ("50%", "50"),
    ],
)
def test_what_means_something_else_does_not(best: str, other: str) -> None:
    assert agreement(best, other) == 0.0


def test_a_question_after_a_number_is_about_the_last_one() -> None:
    best = "She buys 3 boxes of 12 eggs each, so she has 36 eggs."
    assert agreement(best, "3 times 12 makes 36 of them in the end.", "How many eggs has she?") == 1.0
    assert agreement(best, "3 plus 12 makes 15 of them in the end.", "How many eggs has she?") == 0.0


def test_texts_agree_as_far_as_they_share_words() -> None:
    one = "The river rises in the mountains and runs for miles to the sea"
    assert agreement(one, one.upper()) == 1.0
    some = agreement(one, "The river rises in the hills and runs a long way down to the sea")
    assert some is not None and 0.6 < some < 0.9
    assert agreement(one, "") == 0.0
    assert overlap("", "") == 0.0


def test_code_that_differs_agrees_in_part_and_need_not_be_python() -> None:
    other = agreement(CODE, SAME_CODE.replace("+", "-").replace("add", "subtract"))
    assert other is not None and 0.5 < other < 1
    broken = "```\nfor (;;) { x = '\n```"
    assert agreement(broken, broken.replace("\n```", "   \n\n```")) == 1.0


def test_without_an_answer_of_the_best_model_there_is_nothing_to_compare_with() -> None:
    assert agreement("  ", "something") is None
    assert agreement("<think>and so on, until no tokens are left", "something") is None


@pytest.mark.parametrize(
    "garbage",
    [
        "9" * 50_000 + "x",
        "```" * 20_000,
        "\\boxed{" * 5000,
        "(" * 50_000,
        "<think>" * 5000,
        "#### " * 9000,
        "\0" * 99,
    ],
    ids=["digits", "fences", "boxes", "brackets", "thoughts", "headings", "zeros"],
)
def test_garbage_is_compared_soon_and_without_harm(garbage: str) -> None:
    assert agreement(garbage, garbage) in (1.0, None)
    assert agreement("#### 4", garbage) in (0.0, 1.0)
    final_answer(garbage, numeric=True)
