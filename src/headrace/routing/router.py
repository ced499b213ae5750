"""Which models will do for a prompt: estimates, and the slack with which a promised quality is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.routing.estimator import Estimate, Estimator
from headrace.routing.records import Records
from headrace.routing.risk import Promise, chosen, greatest_slack, least
from headrace.routing.train import digests

FEWEST = 50
"""Records that a promise needs."""


@dataclass(frozen=True)
class Decision:
    """Of one prompt: the estimates, which models will do, and the promise that says so.

    `will_do` names models in the estimator's order; the best one is always among them. `promise` is None
    where none was calibrated that is strict enough: then it is the estimates alone that say so.
    """

    estimate: Estimate
    will_do: tuple[str, ...]
    promise: Promise | None


@dataclass(frozen=True)
class Router:
    """An estimator and the promises calibrated for it. `models` of both stand in the order of their cost."""

    estimator: Estimator
    promises: tuple[Promise, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models it knows, the cheapest first."""
        return self.estimator.models

    @property
    def best(self) -> str:
        """The model with the highest mean score among the records learnt from."""
        return self.models[int(np.argmax(self.estimator.means))]

    def promise(self, quality: float) -> Promise | None:
        """The least strict promise that covers `quality`, a share of the best model's; None without one."""
        covering = [promise for promise in self.promises if promise.quality >= quality]
        return min(covering, key=lambda promise: promise.quality, default=None)

    def decide(self, prompt: str, quality: float, slack: float | None = None) -> Decision:
        """Which models will do for this prompt where `quality` of the best model's is asked for.

        `slack`: that of who watches whether the promise is kept, instead of the promise's.
        """
        estimate = self.estimator.estimate(prompt)
        promise = self.promise(quality)
        best = self.models.index(self.best if promise is None else promise.best)
        if slack is None and promise is not None:
            slack = promise.slack
        enough = estimate.good >= least(float(estimate.good[best]), quality, slack)
        enough[best] = True
        names = tuple(name for name, will_do in zip(self.models, enough.tolist(), strict=True) if will_do)
        return Decision(estimate, names, promise)

    def calibrated(
        self, records: Records, qualities: Sequence[float], delta: float = 0.05, horizon: int = 1000
    ) -> Router:
        """The same router with promises set on records of its models, each scored for every model.

        Prompts that the estimator learnt from are left out; what the others among them say of each only
        steadies the slack (`risk.py`). Raises ConfigError where too few are left.
        """
        good, scores = self._held_out(records)
        best = self.models.index(self.best)
        promises = []
        for quality in qualities:
            slack = greatest_slack(good, scores, best, quality, delta, horizon, self.estimator.held_out)
            share = float((chosen(good, best, slack) == best).mean())
            promises.append(Promise(quality, delta, horizon, self.best, slack, share, len(scores)))
        others = [promise for promise in self.promises if promise.quality not in qualities]
        return replace(
            self, promises=tuple(sorted([*others, *promises], key=lambda promise: promise.quality))
        )

    def _held_out(self, records: Records) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        assert records.models == self.models
        known = ~np.isnan(records.scores).any(axis=1)
        new = ~np.isin(digests(records.prompts), self.estimator.seen)
        rows = np.flatnonzero(known & new)
        if len(rows) < FEWEST:
            raise ConfigError(
                f"{len(rows)} records can be calibrated with; at least {FEWEST} are needed that were not "
                f"learnt from, scored for each of {', '.join(self.models)}"
            )
        held_out = records.take(rows)
        return self.estimator.estimates(held_out.prompts), held_out.scores
