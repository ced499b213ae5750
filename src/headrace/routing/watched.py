"""What a watch over a promise knows, as plain data: scored requests, evidence, and what was spent."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.routing.drift import Calibration, Detector
from headrace.routing.risk import least
from headrace.routing.router import Router
from headrace.routing.sequential import Shown

Floats = NDArray[np.float64]

_FORMAT = 1
"""Raised whenever what is known changes its meaning."""

NOT_PROMISED = -1
"""In place of the chosen model, where the choice did not follow the slack: a cost limit, a fallback."""

_SURE = 1.96
"""Standard errors to each side of a 95% interval."""


@dataclass(frozen=True)
class Realised:
    """The chosen models' scores over the best one's, and the 95% interval by the normal approximation."""

    quality: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class WatchState:
    """How a promise fares. Shares and qualities are parts of 1.

    `slack`: in use; None: the estimates alone decide, -1: the best model answers everything. `realised`: of
    the last `samples` scored requests, None without any. `share`: of those that the rule in use leaves to the
    best model. `scored`: all ever scored. `drifted`: an alarm was raised, and no slack was set since.
    `sampling`: the share of requests scored now, budget allowing. `alarms`: of the promise; `shifts`: of
    calibrations. `resets`: how often a slack was set. `spent`: on calls in the shadow; `earned`: on answers.
    `feedback`: how many scores users gave; `received`: their mean over what the estimates expect of the best
    model, whose changes tell more than its value.
    """

    quality: float
    delta: float
    slack: float | None
    realised: Realised | None
    samples: int
    share: float | None
    scored: int
    drifted: bool
    suspected: bool
    sampling: float
    alarms: int
    shifts: int
    resets: int
    spent: float
    earned: float
    feedback: int
    received: float | None


@dataclass
class Record:
    """One scored request; of the models that the policy may use, the cheapest first. None: no score."""

    good: list[float]
    scores: list[float | None]
    chosen: int


@dataclass
class Known:
    """All that a watch knows."""

    about: str
    """What it is about: of anything else it says nothing."""
    slack: float | None
    calibrations: list[Calibration]
    received: list[Calibration]
    """The same, of users' scores."""
    records: list[Record] = field(default_factory=list)
    """The last ones."""
    evidence: Shown | None = None
    """For slacks, as it was saved."""
    promise: Detector = field(default_factory=Detector)
    settled: bool = False
    """Whether a whole window of records was seen since traffic last changed."""
    supported: bool = False
    """Whether the evidence at hand, not an older one, has set the slack."""
    drifted: bool = False
    suspicion: int = 0
    """So many more records are scored eagerly."""
    scored: int = 0
    alarms: int = 0
    shifts: int = 0
    resets: int = 0
    earned: float = 0.0
    spent: float = 0.0
    dearest: float = 0.0
    """About the most that one request's calls in the shadow were expected to cost."""
    feedback: int = 0
    feedback_sum: float = 0.0
    expected_sum: float = 0.0
    """What the estimates expect of the best model, over the requests with feedback."""

    @classmethod
    def of(cls, models: Sequence[str], best: str, quality: float, slack: float | None, learnt: str) -> Known:
        """At the beginning."""
        about = repr((_FORMAT, list(models), best, quality, slack, learnt))
        return cls(about, slack, [Calibration() for _ in models], [Calibration() for _ in models])


def fingerprint(router: Router) -> str:
    """Of what makes a router's estimates: records with those of another say nothing."""
    estimator = router.estimator
    hashed = hashlib.blake2b(repr(router.models).encode(), digest_size=16)
    for array in (estimator.duals, estimator.weights, estimator.means, estimator.links):
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def enough(good: Floats, best: int, quality: float, slack: float | None) -> NDArray[np.bool_]:
    """Which models will do: (N, M) gives (N, M). Without a slack it is the estimates that say so."""
    will_do: NDArray[np.bool_] = good >= least(good[:, [best]], quality, slack)
    will_do[:, best] = True
    return will_do


def realised(records: Sequence[Record], best: int) -> Realised | None:
    """The quality that clients got, where the choice followed the slack; None where there is too little."""
    pairs = [
        (record.scores[record.chosen], record.scores[best])
        for record in records
        if record.chosen != NOT_PROMISED and record.scores[record.chosen] is not None
    ]
    if len(pairs) < 2:
        return None
    got, wanted = np.array(pairs, np.float64).T
    if wanted.mean() <= 0:
        return None
    quality = float(got.mean() / wanted.mean())
    error = float((got - quality * wanted).std()) / float(wanted.mean()) / math.sqrt(len(pairs))
    return Realised(quality, quality - _SURE * error, quality + _SURE * error)
