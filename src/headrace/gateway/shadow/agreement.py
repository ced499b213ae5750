"""Grading without another call: an answer is as good as it agrees with the best model's.

It measures agreement, not truth: the best model is always right, and a cheaper one that is right where the
best one errs gets no credit. So quality is understated, most where the best model is often wrong. Of free
text it can only compare words; two good essays agree little.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping

from headrace.gateway.shadow.final_answer import FinalAnswer, final_answer
from headrace.gateway.shadow.grader import Ask, Grader

_NUMERIC = re.compile(r"\b(?:how (?:many|much|far|long|old)|calculate|compute|solve)\b", re.IGNORECASE)
_WORD = re.compile(r"\w+")


class Agreement(Grader):
    """1 where final answers are equal; of texts and code that differ, how many words they share (F1)."""

    async def grade(self, question: str, answers: Mapping[str, str], best: str, ask: Ask) -> dict[str, float]:
        return await asyncio.to_thread(_grade, question, answers, best)


def _grade(question: str, answers: Mapping[str, str], best: str) -> dict[str, float]:
    numeric = _NUMERIC.search(question) is not None
    wanted = final_answer(answers[best], numeric)
    if not wanted.text:
        return {}
    return {
        model: 1.0 if model == best else _agree(final_answer(answer, numeric), wanted)
        for model, answer in answers.items()
    }


def _agree(got: FinalAnswer, wanted: FinalAnswer) -> float:
    if got.text == wanted.text:
        return 1.0
    if {got.kind, wanted.kind} <= {"marked", "short", "number"}:
        return 0.0
    if wanted.kind in ("text", "code"):
        return overlap(got.text, wanted.text)
    return 1.0 if _mentions(got.text, wanted.text) else 0.0


def _mentions(text: str, wanted: str) -> bool:
    """Whether a longer text gives a short answer; of a letter, it must be clear that an option is meant."""
    if len(wanted) == 1 and wanted.isalpha():
        meant = rf"\b(?:option|choice|answer)(?: is)? \W?{wanted}\b|\({wanted}\)|^{wanted}[.):]"
        return re.search(meant, text, re.MULTILINE) is not None
    return f" {wanted} " in f" {' '.join(_WORD.findall(text))} "


def overlap(one: str, other: str) -> float:
    """F1 of the words of two texts, each counted as often as it occurs."""
    mine, theirs = Counter(_WORD.findall(one.casefold())), Counter(_WORD.findall(other.casefold()))
    shared = (mine & theirs).total()
    return 2 * shared / max(1, mine.total() + theirs.total())
