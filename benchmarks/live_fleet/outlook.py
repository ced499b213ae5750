"""What routing knows of questions it has not learnt from: before an answer, from the prompt, and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from headrace.routing.confidence import Told, features, learn
from headrace.routing.train import train
from live_fleet.questions import Question
from live_fleet.table import Rows, Table

Floats = NDArray[np.float64]
Step = tuple[int, int]
"""A model's column, and that of the one which is asked next, if at all."""

FOLDS = 5
HELD_OUT = 200
"""GSM8K's first questions, to test with; the others are to learn from."""


@dataclass(frozen=True)
class Outlook:
    """Of N questions: `good`, (N, M), the chances of each model; for each step `own`, (N,), the chance that
    the first model's answer is good, and `following`, (N,), that the next one's would be, both told from the
    first one's answer."""

    rows: Rows
    good: Floats
    own: dict[Step, Floats]
    following: dict[Step, Floats]


@dataclass(frozen=True)
class Division:
    """One division of the questions: what is known of those learnt from, as if held out, and of the rest."""

    learnt: Outlook
    tested: Outlook


def divisions(questions: Sequence[Question]) -> list[tuple[Rows, Rows]]:
    """Rows to learn from and to test with. HumanEval's are divided in folds; GSM8K's first are only tested
    with, in folds, too, where there are such, and the others are learnt from in all of them."""
    code = [row for row, question in enumerate(questions) if question.suite == "humaneval"]
    maths = [row for row, question in enumerate(questions) if question.suite == "gsm8k"]
    tests = [row for row in maths if questions[row].number < HELD_OUT]
    folds = FOLDS if code else 1
    fold = np.full(len(questions), -1)
    for rows in (code, tests):
        fold[rows] = np.random.default_rng(0).permutation(len(rows)) % folds
    learnable = np.ones(len(questions), bool)
    learnable[tests] = False
    return [
        (np.flatnonzero(learnable & (fold != number)), np.flatnonzero(fold == number))
        for number in range(folds)
    ]


def divided(table: Table, learnt_from: Rows, tested: Rows) -> Division:
    """Learns from some rows, and says what it then knows of them and of the others."""
    inner = np.random.default_rng(1).permutation(len(learnt_from)) % FOLDS
    held_out = np.zeros((len(learnt_from), len(table.models)))
    for number in range(FOLDS):
        held_out[inner == number] = _good(table, learnt_from[inner != number], learnt_from[inner == number])
    known = Outlook(learnt_from, held_out, {}, {})
    unknown = Outlook(tested, _good(table, learnt_from, tested), {}, {})
    for step in combinations(range(len(table.models)), 2):
        first, following = step
        numbers = _features(table, known, step)
        scores = table.scores[learnt_from]
        learnt = learn(numbers, scores[:, first], scores[:, following])
        for outlook in (known, unknown):
            numbers = _features(table, outlook, step)
            outlook.own[step] = learnt.own.chances(numbers)
            outlook.following[step] = learnt.next.chances(numbers)
    return Division(known, unknown)


def _good(table: Table, learnt_from: Rows, of: Rows) -> Floats:
    return train(table.records(learnt_from)).estimates([table.questions[row].prompt for row in of])


def _features(table: Table, outlook: Outlook, step: Step) -> Floats:
    first, following = step
    told = []
    for row, good in zip(outlook.rows.tolist(), outlook.good, strict=True):
        answer = table.given[row][first]
        told.append(Told(answer.tokens, answer.logprobs, answer.finish_reason, good[first], good[following]))
    return np.array([features(each) for each in told])
