"""Learns an Estimator from records: kernel ridge regression, its strength chosen by leaving one out.

What decides between models is the difference of their chances, which is far harder to see than how hard a
prompt is. So a score is taken apart into what the models have in common and how each departs from it, as in
multi-task learning (Evgeniou & Pontil, 2004), and each part is shrunk as much as its noise asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.routing.estimator import Estimator, HeldOut, Novelty, nearness
from headrace.routing.features import Features
from headrace.routing.records import Records
from headrace.routing.ridge import Ridge, Solved

Floats = NDArray[np.float64]

FEWEST, MOST = 20, 4000
"""Records needed; and so many at most are learnt from, drawn at random: time grows with the cube."""

_ANCHORS = 200


def train(records: Records, seed: int = 0) -> Estimator:
    """An estimator for the records' models. Scores may be missing (NaN), but each model needs FEWEST.

    Raises ConfigError where there is too little to learn from.
    """
    known = ~np.isnan(records.scores)
    for name, count in zip(records.models, known.sum(axis=0).tolist(), strict=True):
        if count < FEWEST:
            raise ConfigError(
                f"{count} scores of {name} are too few to learn from; at least {FEWEST} are needed"
            )
    if len(records) > MOST:
        records = records.take(np.sort(np.random.default_rng(seed).permutation(len(records))[:MOST]))
        known = ~np.isnan(records.scores)
    features = Features.of(records.prompts)
    kernel = features.kernel()
    fitted = _fit(kernel, records.scores)
    links = np.array(
        [_link(fitted.held_out[k, m], records.scores[k, m]) for m, k in enumerate(known.T)], np.float32
    )
    seen = digests(records.prompts)
    return Estimator(
        records.models,
        features.centre,
        features.scale,
        features.support,
        fitted.duals.astype(np.float32),
        features.rarities,
        features.folded(fitted.duals),
        fitted.means.astype(np.float32),
        links,
        _novelty(features.support, fitted, seed),
        seen,
        _held_out(fitted, links, records.scores, seen),
    )


def digests(prompts: Sequence[str]) -> NDArray[np.uint64]:
    """By which an estimator knows again the prompts it learnt from, shape (len(prompts),)."""
    raw = b"".join(blake2b(prompt.encode("utf-8", "replace"), digest_size=8).digest() for prompt in prompts)
    return np.frombuffer(raw, "<u8").astype(np.uint64)


@dataclass(frozen=True)
class _Fitted:
    """`duals`, `held_out`: (N, M), the latter what is predicted for each prompt without it.

    `means`: (M,). `noise`: (M,), the variance of scores around what is predicted.
    """

    means: Floats
    duals: Floats
    held_out: Floats
    noise: Floats
    strength: float


def _fit(kernel: Floats, scores: Floats) -> _Fitted:
    """Regression of the models' common part and of their departures from it."""
    means = np.nanmean(scores, axis=0)
    centred = scores - means
    shared = np.nanmean(centred, axis=1)
    ridge = Ridge.of(kernel)
    common = ridge.solved(shared[:, None])
    alone = (~np.isnan(scores)).sum(axis=1) == 1
    shared[alone] = common.held_out[
        alone, 0
    ]  # one score does not tell what the others have in common with it
    departures = centred - shared[:, None]
    columns = _departures(kernel, ridge, departures)
    duals = common.duals + np.stack([column.duals[:, 0] for column in columns], axis=1)
    held_out = means + common.held_out + np.stack([column.held_out[:, 0] for column in columns], axis=1)
    return _Fitted(means, duals, held_out, np.nanvar(scores - held_out, axis=0), common.strength)


def _held_out(
    fitted: _Fitted, links: NDArray[np.float32], scores: Floats, seen: NDArray[np.uint64]
) -> HeldOut:
    """Of the records scored for every model. A prompt that is there twice is not left out by one of them."""
    _, which, count = np.unique(seen, return_inverse=True, return_counts=True)
    rows = ~np.isnan(scores).any(axis=1) & (count[which] == 1)
    good = 1 / (1 + np.exp(-(links[:, 0] + links[:, 1] * fitted.held_out[rows])))
    return HeldOut(good.astype(np.float32), scores[rows].astype(np.float32))


def _departures(kernel: Floats, ridge: Ridge, departures: Floats) -> list[Solved]:
    """A regression for each model, on the prompts it has a score for; one strength for all."""
    known = ~np.isnan(departures)
    if known.all():
        solved = ridge.solved(departures)
        return [
            Solved(solved.duals[:, [m]], solved.held_out[:, [m]], solved.strength)
            for m in range(departures.shape[1])
        ]
    columns = []
    for rows, values in zip(known.T, departures.T, strict=True):
        part = Ridge.of(kernel[np.ix_(rows, rows)]).solved(values[rows, None])
        duals = np.zeros((len(rows), 1))
        duals[rows] = part.duals
        held_out = kernel @ duals
        held_out[rows] = part.held_out
        columns.append(Solved(duals, held_out, part.strength))
    return columns


def _link(values: Floats, scores: Floats) -> tuple[float, float]:
    """Offset and slope of the logistic curve from held-out predictions to scores (Platt, 1999).

    By Newton's method. A weak prior towards the straight line through (1/2, 1/2) keeps it finite where the
    scores are all alike.
    """
    inputs = np.stack([np.ones_like(values), values], axis=1)
    prior = np.array([-2.0, 4.0])
    link = prior.copy()
    for _ in range(25):
        chance = 1 / (1 + np.exp(-inputs @ link))
        slope = inputs.T @ (chance - scores) + 0.1 * (link - prior)
        bend = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + 0.1 * np.eye(2)
        link = link - np.linalg.solve(bend, slope)
    return float(link[0]), max(float(link[1]), 0.0)


def _novelty(support: NDArray[np.float32], fitted: _Fitted, seed: int) -> Novelty:
    """The variance that a Gaussian process on the cues has left: 1 - k K⁻¹ k + s k (s K + C Cᵀ)⁻¹ k.

    K is the kernel among anchors, C from them to all prompts, s the strength: noise over prior variance.
    """
    count = min(_ANCHORS, len(support))
    anchors = np.sort(np.random.default_rng(seed).permutation(len(support))[:count])
    cross = nearness(support[anchors], support).astype(np.float64)
    among = cross[:, anchors] + 1e-3 * np.eye(count)
    inverse = np.linalg.inv(among) - np.linalg.inv(among + cross @ cross.T / fitted.strength)
    prior = fitted.noise / fitted.strength
    return Novelty(anchors.astype(np.int32), inverse.astype(np.float32), prior.astype(np.float32))
