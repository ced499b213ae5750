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

A promise set beforehand is where it starts; its own delta comes on top. It is replaced when records support a
greater slack, or when a whole window of them supports only a lesser one; likewise what was set before
evidence began anew. Without a promise the estimates alone decide until then.

What users say (`feedback`) is about one answer, by those who care to say it, on a scale of their own. It
cannot be paired with the best model's answer to the same prompt, and someone could drive up costs with it.
So it moves no threshold. It can show that a model's answers are no longer received as they were; then more
is scored in the shadow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.routing.drift import SELDOM, Calibration
from headrace.routing.learner import recognised
from headrace.routing.risk import ALWAYS_BEST
from headrace.routing.sequential import Sequential, Shown
from headrace.routing.watched import NOT_PROMISED, Known, Record, WatchState, enough, realised

Floats = NDArray[np.float64]

EAGER = 10
"""So many times more is scored in the shadow where little is known, or drift suspected."""

_MOST_EAGER = 0.5
"""But no more than this share."""

_SUSPICIOUS = SELDOM ** (1 / 3)
"""Evidence that is a third of the way to an alarm."""

_FADING = 0.995
"""What one very dear request is remembered by, at each of those after it."""

_LOOKS = 25
"""The slack is set at every so many records."""

_RENEWED = 8
"""After so many windows of records the evidence begins anew, lest it tell of times long gone."""


class Watch:
    """One policy's promise. Vectors are (M,), as its models are; a model's number is its place there."""

    def __init__(
        self,
        models: Sequence[str],
        best: str,
        quality: float,
        *,
        slack: float | None = None,
        learnt: str = "",
        delta: float = 0.05,
        window: int = 1000,
        horizon: int = 1000,
        shadow: float = 0.02,
        exploration: float = 0.05,
    ) -> None:
        """`models`: of the policy, the cheapest first, one for each estimate; `best` is one of them.

        `slack`: that of a promise set beforehand; None without one. `learnt`: `watched.fingerprint` of what
        makes the estimates. `shadow`: the share of requests scored; `exploration`: of what answers cost, what
        that may cost.
        """
        self.models = tuple(models)
        self.best = self.models.index(best)
        """The model that the promise is about."""
        self.quality = quality
        self._delta, self._window, self._horizon = delta, window, horizon
        self._shadow, self._exploration = shadow, exploration
        self._known = Known.of(self.models, best, quality, slack, learnt)
        self._evidence = self._no_evidence()
        self._earned_before = 0.0  # when the last request was considered

    @property
    def slack(self) -> float | None:
        """By how much a cheaper model may be less likely to be good; None: the estimates alone decide."""
        return self._known.slack

    def slack_for(self, quality: float, promised: float | None) -> float | None:
        """The slack where another quality is asked for, of which `promised` was promised beforehand, if any.

        After an alarm that no longer holds: the slack in use then does for less, the best model for more.
        """
        if quality == self.quality:
            return self._known.slack
        if self._known.alarms:
            return self._known.slack if quality < self.quality else ALWAYS_BEST
        return promised

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
        known = self._known
        evidence = max(known.promise.evidence, *(each.evidence for each in known.calibrations))
        return known.suspicion > 0 or evidence >= _SUSPICIOUS

    def earned(self, cost: float) -> None:
        """A client's answer cost so much."""
        self._known.earned += cost

    def spent(self, cost: float) -> None:
        """Calls in the shadow may cost so much; later, what they cost more, or less if negative."""
        self._known.spent += cost
        self._known.dearest = max(cost, _FADING * self._known.dearest)

    def asks(self, good: Floats, answered: int) -> list[int]:
        """Models to ask in the shadow: the best, each that some slack chooses; not the one that answered."""
        cheaper = good[: self.best]
        before = np.maximum.accumulate(np.concatenate(([-np.inf], cheaper)))[:-1]
        wanted = [*np.flatnonzero(cheaper > before).tolist(), self.best]
        return [model for model in wanted if model != answered]

    def scored(self, good: Floats, scores: Floats, chosen: int) -> None:
        """One request that was scored in the shadow; a score is NaN where it is not known.

        `chosen`: the model whose answer the client got; NOT_PROMISED where the slack did not choose it.
        A record without the best model's score says nothing about the promise; one that lacks another of
        `asks` does not help to set the slack.
        """
        known = self._known
        known.scored += 1
        known.suspicion = max(0, known.suspicion - 1)
        self._calibrate(scores - good)
        if np.isnan(scores[self.best]):
            return
        plain = [None if np.isnan(score) else float(score) for score in scores]
        known.records.append(Record(good.tolist(), plain, chosen))
        del known.records[: -self._window]
        fell_short = float(self.quality * scores[self.best] - scores[chosen])
        if chosen != NOT_PROMISED and not math.isnan(fell_short) and known.promise.saw(fell_short):
            self._alarm()
        elif not np.isnan(scores[self.asks(good, NOT_PROMISED)]).any():
            self._evidence.saw(good, scores)
            self._look()

    def feedback(self, good: Floats, model: int, score: float) -> None:
        """A user's score, from 0 to 1, for the answer of one model."""
        known = self._known
        known.feedback += 1
        known.feedback_sum += score
        known.expected_sum += float(good[self.best])
        if known.received[model].saw(score - float(good[model])):
            known.received[model] = Calibration()
            known.suspicion = self._window // 4

    def state(self) -> WatchState:
        """How the promise fares."""
        known = self._known
        good = np.array([record.good for record in known.records]).reshape(-1, len(self.models))
        choices = enough(good, self.best, self.quality, known.slack).argmax(axis=1)
        return WatchState(
            quality=self.quality,
            delta=self._delta,
            slack=known.slack,
            realised=realised(known.records, self.best),
            samples=len(known.records),
            share=float((choices == self.best).mean()) if len(choices) else None,
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
        """Takes up what `save` gave. False where that was of other estimates or models, or began with
        another promise: its records say nothing here, and only what was spent is taken. False, too, for
        anything else."""
        if (known := recognised(saved, Known)) is None:
            return False
        if known.about == self._known.about:
            self._known, self._evidence = known, self._no_evidence(known.evidence)
            return True
        self._known.earned, self._known.spent, self._known.dearest = known.earned, known.spent, known.dearest
        return False

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
        return Sequential(self.best, self.quality, self._delta, self._window, saved)

    def _begin_anew(self) -> None:
        self._evidence = self._no_evidence()
        self._known.settled = self._known.supported = False

    def _look(self) -> None:
        """Sets the slack, every few records, to what they support."""
        known, evidence = self._known, self._evidence
        if evidence.count % _LOOKS:
            return
        found = evidence.slack(self._horizon)
        whole = evidence.count >= self._window
        known.settled = known.settled or whole
        if known.supported or whole or found > (ALWAYS_BEST if known.slack is None else known.slack):
            known.resets += found != known.slack
            known.slack = found
            known.supported = True
            known.drifted = False
        if evidence.count >= _RENEWED * self._window:
            self._evidence = self._no_evidence()
            known.supported = False
