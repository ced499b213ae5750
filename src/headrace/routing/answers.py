"""Scored answers with what their models told of each token: what confidence is learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from headrace.errors import ConfigError
from headrace.routing.confidence import Confidence, Told, features, learn
from headrace.routing.records import Floats, Records, lines_of
from headrace.routing.train import train

_FOLDS = 5


class ScoredAnswer(Struct):
    """A line of the file. `logprobs`: natural, of each of `tokens`, which are texts."""

    prompt: str
    model: str
    score: float
    tokens: list[str]
    logprobs: list[float]
    finish_reason: str = "stop"


def read_answers(path: Path) -> list[ScoredAnswer]:
    """From JSON in lines, perhaps compressed (.gz). Raises ConfigError that names the line."""
    read = []
    for number, line in lines_of(path):
        try:
            answer = msgspec.json.decode(line, type=ScoredAnswer)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}: line {number}: {error}") from None
        if len(answer.tokens) != len(answer.logprobs) or not 0 <= answer.score <= 1:
            raise ConfigError(
                f"{path}: line {number}: expected a logprob for each token, and a score from 0 to 1"
            )
        read.append(answer)
    return read


def learn_confidences(answers: Sequence[ScoredAnswer], models: Sequence[str]) -> dict[str, Confidence]:
    """Of each model but the last; `models` in the order in which a cascade asks them.

    The chances that an estimator gives before an answer are told by one that has not seen the prompt. Raises
    ConfigError where there is too little to learn from.
    """
    prompts = tuple(dict.fromkeys(answer.prompt for answer in answers))
    rows = {prompt: row for row, prompt in enumerate(prompts)}
    by_place = {(rows[answer.prompt], answer.model): answer for answer in answers}
    for name in models:
        if not any(answer.model == name for answer in answers):
            known = ", ".join(dict.fromkeys(answer.model for answer in answers))
            raise ConfigError(f"there are no answers of {name!r}; there are some of {known}")
    scores = np.array(
        [
            [each.score if (each := by_place.get((row, name))) else np.nan for name in models]
            for row in range(len(prompts))
        ]
    )
    good = _unseen(Records(prompts, tuple(models), scores))
    found = {}
    for place, (name, _) in enumerate(pairwise(models)):
        both = np.flatnonzero(~np.isnan(scores[:, place : place + 2]).any(axis=1))
        numbers = [
            features(_told(by_place[row, name], good[row, place], good[row, place + 1]))
            for row in both.tolist()
        ]
        found[name] = learn(np.array(numbers), scores[both, place], scores[both, place + 1])
    return found


def _told(answer: ScoredAnswer, good: float, next_good: float) -> Told:
    return Told(answer.tokens, answer.logprobs, answer.finish_reason, float(good), float(next_good))


def _unseen(records: Records) -> Floats:
    """Chances for each prompt by an estimator that was not learnt from it, (N, M)."""
    folds = np.random.default_rng(0).permutation(len(records)) % _FOLDS
    good = np.zeros_like(records.scores)
    for fold in range(_FOLDS):
        out = np.flatnonzero(folds == fold)
        estimator = train(records.take(np.flatnonzero(folds != fold)))
        good[out] = estimator.estimates([records.prompts[row] for row in out])
    return good
