"""Keeping a promise of quality while requests come: scored in the shadow, tested, and thresholds moved.

A share of the requests is scored in the shadow: the best model, the one that was chosen, and every cheaper
one that another slack would have chosen answer, too, and a grader says how good each answer is. Which
requests these are does not depend on what they hold, so each record stands for the traffic. With them

- the promise is tested: a detector bets that the chosen models' scores fall short of `quality` times the
  best one's. At its alarm the best model answers everything at once, until new records support more;
- the calibration of each model's estimates is tested. A shift alone is no loss of quality, so it moves no
  threshold; but records from before it no longer count;
- the slack is set to the greatest that records since the last change support (`sequential.py`). With
  probability 1 - delta no slack that is set is too great while traffic stays as it is, however often one
  looks. After an alarm, a shift, and some thousands of records all begins anew, delta too.

A promise set beforehand is where it starts; its own delta comes on top. A slack is raised whenever records
support it, but only a whole window of them lowers one: fewer may just be too few. Without a promise the
estimates alone decide until then, or until a slack is supported.

What users say (`feedback`) is about one answer, by those who care to say it, on a scale of their own. It
cannot be paired with the best model's answer to the same prompt, and someone could drive up costs with it.
So it moves no threshold. It can show that a model's answers are no longer received as they were; then more
is scored in the shadow.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.routing.drift import SELDOM, Calibration
from headrace.routing.risk import ALWAYS_BEST, Promise
from headrace.routing.router import Router
from headrace.routing.sequential import Sequential, Shown
from headrace.routing.watched import NOT_PROMISED, Known, Record, WatchState, realised

Floats = NDArray[np.float64]

EAGER = 10
"""So many times more is scored in the shadow where little is known, or drift suspected."""

_MOST_EAGER = 0.5
"""But no more than this share."""

_SUSPICIOUS = math.sqrt(SELDOM)
"""Evidence that is half of the way to an alarm."""

_FADING = 0.995
"""What one very dear request is remembered by, at each of those after it."""

_LOOKS = 25
"""The slack is set at every so many records."""

_RENEWED = 8
"""After so many windows of records the evidence begins anew, lest it tell of times long gone."""


class Watch:
    """One policy's promise. Vectors are (M,), as `router.models` are; a model's number is its place there."""

    def __init__(
        self,
        router: Router,
        quality: float,
        *,
        delta: float = 0.05,
        window: int = 1000,
        horizon: int = 1000,
        shadow: float = 0.02,
        exploration: float = 0.05,
        models: Sequence[str] | None = None,
    ) -> None:
        """`shadow`: the share of requests scored; `exploration`: of what answers cost, what that may cost.

        `models`: those that the policy may use; None: all.
        """
        self.quality = quality
        self._router, self._delta, self._window, self._horizon = router, delta, window, horizon
        self._shadow, self._exploration = shadow, exploration
        names = [name for name in router.models if models is None or name in models]
        self._columns = np.array([router.models.index(name) for name in names], np.intp)
        self._best = int(np.argmax(router.estimator.means[self._columns]))
        promise = self._promised(quality)
        self._known = Known(
            _fingerprint(router, names),
            quality,
            None if promise is None else promise.slack,
            [Calibration() for _ in names],
            [Calibration() for _ in names],
        )
        self._evidence = self._no_evidence()
        self._earned_before = 0.0  # when the last request was considered

    @property
    def best(self) -> int:
        """The model that the promise is about."""
        return int(self._columns[self._best])

    @property
    def slack(self) -> float | None:
        """By how much a cheaper model may be less likely to be good; None: the estimates alone decide."""
        return self._known.slack

    def will_do(self, good: Floats, quality: float | None = None) -> NDArray[np.bool_]:
        """Which of the policy's models will do, (M,); the best one always will.

        For another quality than the watched one, the router's own promises hold, or else its estimates. After
        an alarm they do not: then the slack in use does for less, and only the best model for more.
        """
        asked = self.quality if quality is None else quality
        will_do = np.zeros(len(good), np.bool_)
        will_do[self._columns] = self._enough(good[None, self._columns], asked, self._slack_for(asked))[0]
        return will_do

    def wants_sample(self, draw: float) -> bool:
        """Whether to score this request in the shadow; `draw`: uniform in [0, 1).

        If so, set aside what it may cost with `spent`. What this very request costs, or has earned, is no
        matter: were dear ones left out when little is left, those scored would no longer stand for the
        traffic. There must be enough for the dearest so far; so one that is still dearer may overdraw.
        """
        known = self._known
        left = self._exploration * self._earned_before - known.spent
        self._earned_before = known.earned
        return draw < self.sampling and left >= known.dearest

    @property
    def sampling(self) -> float:
        """The share of requests to be scored, budget allowing."""
        eager = not self._known.settled or self.suspected
        return max(self._shadow, min(EAGER * self._shadow, _MOST_EAGER)) if eager else self._shadow

    @property
    def suspected(self) -> bool:
        """Whether something looks like drift, while it is not sure."""
        return self._known.suspicion > 0 or self._known.promise.evidence >= _SUSPICIOUS

    def earned(self, cost: float) -> None:
        """A client's answer cost so much."""
        self._known.earned += cost

    def spent(self, cost: float) -> None:
        """Calls in the shadow may cost so much; later, what they cost more, or less if negative."""
        self._known.spent += cost
        self._known.dearest = max(cost, _FADING * self._known.dearest)

    def asks(self, good: Floats, answered: int) -> list[int]:
        """Models to ask in the shadow: the best, each that some slack chooses; not the one that answered."""
        mine = good[self._columns[: self._best]]
        before = np.maximum.accumulate(np.concatenate(([-np.inf], mine)))[:-1]
        wanted = [*self._columns[np.flatnonzero(mine > before)], self.best]
        return [int(model) for model in wanted if model != answered]

    def scored(self, good: Floats, scores: Floats, chosen: int) -> None:
        """One request that was scored in the shadow; a score is NaN where it is not known.

        `chosen`: the model whose answer the client got; NOT_PROMISED where the slack did not choose it.
        A record without the best model's score says nothing about the promise; one that lacks another of
        `asks` does not help to set the slack.
        """
        known = self._known
        known.scored += 1
        known.suspicion = max(0, known.suspicion - 1)
        mine, got = good[self._columns], scores[self._columns]
        self._calibrate(got - mine)
        if np.isnan(got[self._best]):
            return
        column = self._column(chosen)
        known.records.append(
            Record(
                mine.tolist(),
                [None if np.isnan(score) else float(score) for score in got],
                column,
            )
        )
        del known.records[: -self._window]
        fell_short = self.quality * got[self._best] - got[column]
        if column != NOT_PROMISED and not np.isnan(fell_short) and known.promise.saw(float(fell_short)):
            self._alarm()
        elif not np.isnan(scores[self.asks(good, NOT_PROMISED)]).any():
            self._evidence.saw(mine, got)
            self._look()

    def feedback(self, good: Floats, model: int, score: float) -> None:
        """A user's score, from 0 to 1, for the answer of one model."""
        known, column = self._known, self._column(model)
        if column == NOT_PROMISED:
            return
        known.feedback += 1
        known.feedback_sum += score
        known.expected_sum += float(good[self.best])
        if known.received[column].saw(score - float(good[model])):
            known.received[column] = Calibration()
            known.suspicion = self._window // 4

    def state(self) -> WatchState:
        """How the promise fares."""
        known = self._known
        good = np.array([record.good for record in known.records]).reshape(-1, len(self._columns))
        choices = self._enough(good, self.quality, known.slack).argmax(axis=1)
        return WatchState(
            quality=self.quality,
            delta=self._delta,
            slack=known.slack,
            realised=realised(known.records, self._best),
            samples=len(known.records),
            share=float((choices == self._best).mean()) if len(choices) else None,
            scored=known.scored,
            drifted=known.drifted,
            suspected=self.suspected,
            sampling=self.sampling,
            alarms=known.alarms,
            shifts=known.shifts,
            resets=known.resets,
            spent=known.spent,
            earned=known.earned,
            feedback=known.feedback,
            received=known.feedback_sum / known.expected_sum if known.expected_sum > 0 else None,
        )

    def save(self) -> dict[str, Any]:
        """All that it knows, as what JSON can hold."""
        known = replace(self._known, evidence=self._evidence.shown)
        saved: dict[str, Any] = msgspec.to_builtins(known)
        return saved

    def load(self, saved: object) -> bool:
        """Takes up what `save` gave. False where that was of another router, other models or another quality:
        its records say nothing here, and only what was spent is taken. False, too, for anything else."""
        try:
            known = msgspec.convert(saved, Known)
        except msgspec.ValidationError:
            return False
        if (known.router, known.quality) == (self._known.router, self.quality):
            self._known, self._evidence = known, self._no_evidence(known.evidence)
            return True
        self._known.earned, self._known.spent, self._known.dearest = known.earned, known.spent, known.dearest
        return False

    def _promised(self, quality: float) -> Promise | None:
        promise = self._router.promise(quality)
        return promise if promise is not None and promise.best == self._router.models[self.best] else None

    def _slack_for(self, quality: float) -> float | None:
        if quality == self.quality:
            return self._known.slack
        if self._known.alarms:
            return self._known.slack if quality < self.quality else ALWAYS_BEST
        promise = self._promised(quality)
        return None if promise is None else promise.slack

    def _enough(self, good: Floats, quality: float, slack: float | None) -> NDArray[np.bool_]:
        """Of the policy's models: (N, C) gives (N, C)."""
        wanted = good[:, [self._best]]
        enough = good >= (quality * wanted if slack is None else wanted - slack)
        enough[:, self._best] = True
        return enough

    def _column(self, model: int) -> int:
        """Its number among the policy's models; NOT_PROMISED for one that is not."""
        found = np.flatnonzero(self._columns == model)
        return int(found[0]) if len(found) else NOT_PROMISED

    def _calibrate(self, residuals: Floats) -> None:
        known = self._known
        for model in np.flatnonzero(~np.isnan(residuals)):
            if known.calibrations[model].saw(float(residuals[model])):
                known.calibrations[model] = Calibration()
                known.shifts += 1
                self._begin_anew()

    def _alarm(self) -> None:
        """The best model answers everything, and only what comes from now on counts."""
        known = self._known
        known.slack = ALWAYS_BEST
        known.drifted = True
        known.alarms += 1
        self._begin_anew()
        known.calibrations = [Calibration() for _ in known.calibrations]

    def _no_evidence(self, saved: Shown | None = None) -> Sequential:
        return Sequential(self._best, self.quality, self._delta, self._window, saved)

    def _begin_anew(self) -> None:
        self._evidence = self._no_evidence()
        self._known.settled = False

    def _look(self) -> None:
        """Sets the slack, every few records, to what they support."""
        known, evidence = self._known, self._evidence
        if evidence.count % _LOOKS:
            return
        found = evidence.slack(self._horizon)
        enough = evidence.count >= self._window
        known.settled = known.settled or enough
        if enough or found > (ALWAYS_BEST if known.slack is None else known.slack):
            known.resets += found != known.slack
            known.slack = found
            known.drifted = False
        if evidence.count >= _RENEWED * self._window:
            self._evidence = self._no_evidence()


def _fingerprint(router: Router, names: Sequence[str]) -> str:
    """Of what makes the estimates: those of another router cannot be compared."""
    estimator = router.estimator
    hashed = hashlib.blake2b(repr((router.models, list(names))).encode(), digest_size=16)
    for array in (estimator.duals, estimator.weights, estimator.means, estimator.links):
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()
