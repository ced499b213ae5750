"""Answers and their scores as arrays: a row for each question, a column for each model, cheapest first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.routing.records import Records
from live_fleet import answers
from live_fleet.answers import Answer
from live_fleet.costs import Price
from live_fleet.questions import Question
from live_fleet.score import right

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Table:
    """For N questions and M models: `scores` and `costs` are (N, M); `given` are the answers, by row."""

    questions: tuple[Question, ...]
    models: tuple[str, ...]
    scores: Floats
    costs: Floats
    given: tuple[tuple[Answer, ...], ...]

    def __len__(self) -> int:
        return len(self.questions)

    def records(self, rows: Rows) -> Records:
        """Of these rows, as `headrace route train` reads them."""
        return Records(tuple(self.questions[row].prompt for row in rows), self.models, self.scores[rows])


def table(folder: Path, questions: Sequence[Question], prices: dict[str, Price]) -> Table:
    """Of the questions that every model has answered greedily. `prices`: by model, the cheapest first."""
    suites = sorted({question.suite for question in questions})
    models = tuple(prices)
    given = {
        (answer.question, model): answer
        for suite in suites
        for model in models
        for answer in answers.read(answers.path_of(folder, suite, model))
        if not answer.sample
    }
    asked = tuple(q for q in questions if all((q.name, model) in given for model in models))
    rows = tuple(tuple(given[question.name, model] for model in models) for question in asked)
    scores = scored(folder / "scores.json", [(q, a) for q, row in zip(asked, rows, strict=True) for a in row])
    return Table(
        asked,
        models,
        np.array(scores, np.float64).reshape(len(asked), len(models)),
        np.array([[prices[answer.model].of(answer) for answer in row] for row in rows]).reshape(
            len(asked), -1
        ),
        rows,
    )


def scored(kept: Path, pairs: Sequence[tuple[Question, Answer]]) -> list[bool]:
    """Whether each answer is right; what is known from an earlier run is kept in a file."""
    names = [f"{answer.model} {question.name} {answer.sample}" for question, answer in pairs]
    known: dict[str, bool] = json.loads(kept.read_text()) if kept.exists() else {}
    new = [n for n, name in enumerate(names) if name not in known]
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda n: right(pairs[n][0], pairs[n][1].text), new)
        known |= {names[n]: result for n, result in zip(new, results, strict=True)}
    kept.write_text(json.dumps(known))
    return [known[name] for name in names]
