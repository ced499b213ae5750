"""The chance that an answer is good, told from the answer itself: how sure the model was of its tokens.

Of a prompt, an estimator sees how hard it looks; of an answer, a cascade also sees how it went. Both make up
a few numbers, from which logistic regression, learnt from scored answers, tells the chance that this answer
is good, and the chance that the next model's would be: where neither is, the next model is not worth asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

Floats = NDArray[np.float64]

FEWEST = 30
"""Scored answers that are needed."""

_LAST = 8
_UNSURE = float(np.log(0.5))
_FURTHEST = 4.0
_STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_FOLDS = 8


@dataclass(frozen=True)
class Told:
    """What is known when an answer has ended.

    `tokens`, `logprobs`: text and natural log-probability of each token generated. `finish_reason`: as in
    OpenAI's dialect. `good`, `next_good`: chances that an estimator gave, from the prompt, to this model and
    to the next one.
    """

    tokens: Sequence[str]
    logprobs: Sequence[float]
    finish_reason: str
    good: float
    next_good: float


def features(told: Told) -> Floats:
    """The numbers that a chance is told from, shape (FEATURES,).

    Tokens with digits count by themselves, too: much of what is wrong in an answer is a number.
    """
    logprobs = np.array(told.logprobs or [0.0], np.float64).clip(min=-30.0, max=0.0)
    rising = np.sort(logprobs)
    figures = [n for n, token in enumerate(told.tokens) if any(map(str.isdigit, token))]
    of_figures = logprobs[figures] if figures else logprobs
    return np.array(
        [
            np.sqrt(-logprobs.mean()),
            np.sqrt(-rising[0]),
            np.sqrt(-logprobs[-_LAST:].mean()),
            np.sqrt(-rising[: max(1, len(rising) // 20)].mean()),
            np.sqrt(-of_figures.mean()),
            np.sqrt(-of_figures.min()),
            np.mean(logprobs < _UNSURE),
            np.log1p(-logprobs.sum()),
            np.log(len(logprobs)),
            float(told.finish_reason == "length"),
            _odds(told.good),
            _odds(told.next_good),
        ]
    )


FEATURES = 12
"""How many numbers `features` gives."""


@dataclass(frozen=True)
class Curve:
    """A logistic regression on standardised features: plain numbers, each tuple (FEATURES,) long."""

    centre: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    offset: float

    def chance(self, numbers: Floats) -> float:
        """Of these features, shape (FEATURES,)."""
        return float(self.chances(numbers[None])[0])

    def chances(self, numbers: Floats) -> Floats:
        """Of several answers' features: (N, FEATURES) gives (N,)."""
        inputs = _standardised(numbers, np.array(self.centre), np.array(self.scale))
        return np.asarray(1 / (1 + np.exp(-(self.offset + inputs @ np.array(self.weights)))))


@dataclass(frozen=True)
class Confidence:
    """Of one model's answers: the chance that they are good, and that the next model's would be.

    Plain data, which msgspec reads and writes as JSON. `answers`: how many it was learnt from.
    """

    own: Curve
    next: Curve
    answers: int

    def chance(self, told: Told) -> float:
        """That this answer is good."""
        return self.own.chance(features(told))

    def next_chance(self, told: Told) -> float:
        """That the next model's answer to the same prompt would be good."""
        return self.next.chance(features(told))


def learn(numbers: Floats, scores: Floats, next_scores: Floats) -> Confidence:
    """From features of a model's answers, (N, FEATURES), their scores in [0, 1] and the next model's, (N,).

    The estimator's chances among the features must be for prompts it was not learnt from: else they look
    better than they are. Raises ConfigError where there is too little to learn from.
    """
    if len(numbers) < FEWEST:
        raise ConfigError(f"{len(numbers)} scored answers are too few; at least {FEWEST} are needed")
    return Confidence(fit(numbers, scores), fit(numbers, next_scores), len(numbers))


def fit(numbers: Floats, scores: Floats) -> Curve:
    """Of the shrinkages tried, the one that predicts best what is left out; (N, FEATURES) and (N,)."""
    centre, scale = numbers.mean(axis=0), numbers.std(axis=0) + 1e-6
    inputs = _standardised(numbers, centre, scale)
    folds = np.random.default_rng(0).permutation(len(scores)) % _FOLDS

    def loss(strength: float) -> float:
        lost = 0.0
        for fold in range(_FOLDS):
            out = folds == fold
            offset, weights = _newton(inputs[~out], scores[~out], strength)
            values = offset + inputs[out] @ weights
            lost += float((np.logaddexp(0, values) - scores[out] * values).sum())
        return lost

    offset, weights = _newton(inputs, scores, min(_STRENGTHS, key=loss))
    return Curve(tuple(centre.tolist()), tuple(scale.tolist()), tuple(weights.tolist()), offset)


def _newton(inputs: Floats, scores: Floats, strength: float) -> tuple[float, Floats]:
    """Offset and weights, shrunk by a Gaussian prior: the offset hardly, just so that it stays finite."""
    design = np.concatenate([np.ones((len(inputs), 1)), inputs], axis=1)
    prior = np.diag([0.1, *np.full(inputs.shape[1], strength)])
    link: Floats = np.zeros(design.shape[1])
    for _ in range(30):
        chance = 1 / (1 + np.exp(-(design @ link).clip(-30, 30)))
        slope = design.T @ (chance - scores) + prior @ link
        bend = (design * (chance * (1 - chance))[:, None]).T @ design + prior
        step = np.linalg.solve(bend, slope)
        link = link - step * min(1.0, 5.0 / max(1e-12, float(np.abs(step).max())))
    return float(link[0]), link[1:]


def _standardised(numbers: Floats, centre: Floats, scale: Floats) -> Floats:
    """In standard deviations from what is usual, and within bounds."""
    return np.asarray(((numbers - centre) / scale).clip(-_FURTHEST, _FURTHEST))


def _odds(chance: float) -> float:
    """Logarithm of the odds, within bounds."""
    within = min(max(chance, 0.001), 0.999)
    return float(np.log(within / (1 - within)))
