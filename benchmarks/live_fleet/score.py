"""Whether an answer is right: GSM8K by its last number, HumanEval by its tests."""

from __future__ import annotations

import re

from live_fleet.questions import Question
from live_fleet.sandbox import passes

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def right(question: Question, text: str) -> bool:
    """Whether this answer to the question is right."""
    if question.suite == "gsm8k":
        number = number_of(text)
        return number is not None and number == float(question.truth)
    return passes(program(question, text))


def number_of(text: str) -> float | None:
    """The answer's number: the last one after '####', else in a box, else of all; None without any."""
    marked = text.rpartition("####")[2] if "####" in text else ""
    boxed = _BOXED.findall(text)
    for part in (marked, boxed[-1] if boxed else "", text):
        if numbers := _NUMBER.findall(part):
            return float(numbers[-1].replace(",", ""))
    return None


def program(question: Question, text: str) -> str:
    """The stub, the answer's first block of code that defines something (or all of it), and the tests.

    The stub comes first for its imports and helpers; an answer that is only a body goes on from it.
    """
    blocks = _BLOCK.findall(text) or [text]
    code = next((block for block in blocks if "def " in block), blocks[0])
    if "def " not in code:
        return f"{question.stub}{code}\n{question.truth}"
    return f"{question.stub}    pass\n\n{code}\n{question.truth}"
