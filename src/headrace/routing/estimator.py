"""For each model the chance that its answer to a prompt will be good, from the prompt's text alone.

An estimator is plain data that `train.py` computes: kernel ridge regression on a prompt's cues, words and
runs of letters, with the linear kernels folded into a weight for each bucket, so that an estimate takes well
under a millisecond. The chances are calibrated on predictions for prompts that were held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headrace._native import PromptEstimator
from headrace.routing.cues import what_is_read

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

WIDTH = 1.2
"""Of the kernel on cues: exp(-WIDTH · mean squared difference of standardised cues)."""

_FURTHEST = 4.0
"""Standard deviations beyond which a cue tells no more, so that an odd prompt keeps some neighbours."""


@dataclass(frozen=True)
class Estimate:
    """Chances of a good answer, and how far each may be off for want of similar prompts, shape (models,)."""

    good: Floats
    spread: Floats


@dataclass(frozen=True)
class HeldOut:
    """What an estimator that had not seen these records said of them, and what came of it, both (N, M)."""

    good: NDArray[np.floating]
    scores: NDArray[np.floating]


@dataclass(frozen=True)
class Novelty:
    """How little is known around a point of the cues' space: the variance a Gaussian process has left there.

    `anchors` are rows of an estimator's support; the variance at k = kernel(cues, anchors) is
    prior · (1 - k `inverse` k), by the Nyström approximation.
    """

    anchors: NDArray[np.int32]
    inverse: Singles
    prior: Singles


@dataclass(frozen=True)
class Estimator:
    """What was learnt from records, for `models` in the records' order; shapes with M models, N prompts.

    `centre`, `scale`: (CUES,). `support`: (N, CUES), standardised cues; `duals`: (N, M). `rarities`:
    (2, BUCKETS) and `weights`: (2, BUCKETS, M), of words and of letters. `means`: (M,). `links`: (M, 2),
    offset and slope of the logistic curve that makes a chance of a regression's value. `seen`: digests of the
    prompts learnt from. `held_out`: those learnt from, each by what the others say of it; None: not known.
    """

    models: tuple[str, ...]
    centre: Singles
    scale: Singles
    support: Singles
    duals: Singles
    rarities: Singles
    weights: Singles
    means: Singles
    links: Singles
    novelty: Novelty
    seen: NDArray[np.uint64]
    held_out: HeldOut | None = None

    def estimate(self, prompt: str) -> Estimate:
        """The chances of a good answer to this prompt. Of a long one both ends are read."""
        return Estimate(*self._compiled.estimate(what_is_read(prompt)))

    @cached_property
    def _compiled(self) -> PromptEstimator:
        """The same as native code, for a request waits for its estimate."""
        novelty = self.novelty
        return PromptEstimator(
            centre=_compact(self.centre),
            scale=_compact(self.scale),
            support=_compact(self.support),
            duals=_compact(self.duals),
            rarities=_compact(self.rarities),
            weights=_compact(self.weights),
            means=_compact(self.means),
            links=_compact(self.links),
            anchors=np.ascontiguousarray(novelty.anchors, np.int32),
            inverse=_compact(novelty.inverse),
            prior=_compact(novelty.prior),
            width=WIDTH,
            furthest=_FURTHEST,
        )

    def estimates(self, prompts: Sequence[str]) -> Floats:
        """The chances for several prompts, shape (len(prompts), M)."""
        return np.array([self.estimate(prompt).good for prompt in prompts]).reshape(len(prompts), -1)


def standardised(numbers: Floats, centre: Singles, scale: Singles) -> Singles:
    """Cues, shape (…, CUES), in standard deviations from what is usual, and within bounds."""
    return np.clip((numbers - centre) / scale, -_FURTHEST, _FURTHEST).astype(np.float32)


def nearness(one: Singles, others: Singles) -> Singles:
    """The kernel on standardised cues: shapes (CUES,) and (N, CUES) give (N,); (L, CUES) gives (L, N)."""
    apart = (one**2).sum(axis=-1)[..., None] + (others**2).sum(axis=1) - 2 * one @ others.T
    return np.asarray(np.exp(apart.clip(min=0) * np.float32(-WIDTH / others.shape[1])), np.float32)


def _compact(array: Singles) -> Singles:
    """As native code takes it."""
    return np.ascontiguousarray(array, np.float32)
