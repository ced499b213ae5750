"""How much of the scores is chance, from questions that were asked several times; and what that leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from live_fleet import answers
from live_fleet.ceiling import ceiling, shrunk
from live_fleet.noise import noise
from live_fleet.questions import Question
from live_fleet.table import Table, scored

FEWEST = 30
"""Questions asked several times from which more is concluded than how much is chance."""

Scores = dict[str, list[float]]
"""Of one model's sampled answers, by question."""


def chance(folder: Path, suite: str, table: Table, samples: int) -> dict[str, Any]:
    """Of one suite: each model's noise, and what could be recovered by who knew the chances exactly.

    Empty where no model was asked `samples` times.
    """
    by_model = {model: _sampled(folder, suite, model, table.questions, samples) for model in table.models}
    by_model = {model: scores for model, scores in by_model.items() if scores}
    if not by_model:
        return {}
    told: dict[str, Any] = {
        "noise": {model: asdict(noise(np.array(list(scores.values())))) for model, scores in by_model.items()}
    }
    rows = [
        row
        for row, question in enumerate(table.questions)
        if all(question.name in scores for scores in by_model.values())
    ]
    often = np.tile(table.scores.mean(axis=0), (len(rows), 1))
    for column, model in enumerate(table.models):
        if model in by_model:
            good = [by_model[model][table.questions[row].name] for row in rows]
            often[:, column] = shrunk(good, float(np.mean(good)))
    if len(rows) < FEWEST:
        return told
    told["ceiling"] = [asdict(each) for each in ceiling(table.scores[rows], table.costs[rows], often)]
    return told


def _sampled(folder: Path, suite: str, model: str, questions: Sequence[Question], samples: int) -> Scores:
    asked = {question.name: question for question in questions}
    given = [
        answer
        for answer in answers.read(answers.path_of(folder, suite, model))
        if answer.sample and answer.question in asked
    ]
    right = scored(folder / "scores.json", [(asked[answer.question], answer) for answer in given])
    scores: Scores = {}
    for answer, is_right in zip(given, right, strict=True):
        scores.setdefault(answer.question, []).append(float(is_right))
    return {name: each for name, each in scores.items() if len(each) == samples}
