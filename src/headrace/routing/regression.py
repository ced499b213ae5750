"""A small robust regression of times that is learnt as it goes: outliers do not spoil it, old values fade.

The sum of relative errors, not of their squares, is least (least absolute deviations, by reweighting), and
all coefficients are positive: more work never takes less time. On top lies the median of what the latest
values were in comparison, for what changes faster than coefficients can be told apart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from headrace.routing.learner import recognised

Floats = NDArray[np.float64]

_KEPT = 96
"""Values that are learnt from."""

_HALF_LIFE = 600.0
"""Seconds after which one counts half."""

_LATEST = 12
"""Values whose median corrects the rest."""

_ROUNDS = 4  # each time, from where the last one ended
_SWEEPS = 10

_EXACT = 0.03
"""A relative error below this is as good as none."""

_LEAST = 0.01
"""No coefficient becomes less than so much of its share in the prior."""

_SHORTEST, _LONGEST = 1e-6, 1e5
"""Seconds; what is beyond is taken for these."""

_Input = Annotated[float, Meta(ge=0, le=1e15)]
_Time = Annotated[float, Meta(ge=_SHORTEST, le=_LONGEST)]
_Age = Annotated[float, Meta(ge=0, le=1e10)]
SavedValues = list[tuple[list[_Input], _Time, _Age]]
"""x, y, and how many seconds before the last one it was seen."""

_UNKNOWN = (-0.4, 0.0, 0.0, 0.4)
"""Logarithms of values over predictions that are added to those which were seen, for when these are few."""


class Regression:
    """Learns y = x · coefficients. y is a time in seconds, x is not negative, and its first is positive."""

    def __init__(self, prior: Sequence[float]):
        """`prior`: the coefficients before anything is known, all positive.

        Later, what values do not tell apart keeps the proportions of the prior.
        """
        self._prior = np.array(prior, np.float64)
        self._values: deque[tuple[Sequence[float], float, float]] = deque(maxlen=_KEPT)
        self._new = 0
        self._coefficients: list[float] = list(prior)
        self._off: deque[float] = deque(_UNKNOWN, maxlen=_KEPT)
        """Logarithms of values over what the coefficients say, the latest last."""
        self._factor = 1.0

    def predict(self, x: Sequence[float]) -> float:
        """What y will be, at the median."""
        return self._factor * self._plain(x)

    def late(self, x: Sequence[float], share: float = 0.95) -> float:
        """What y will keep below in this share of all cases."""
        off = sorted(self._off)
        return max(self.predict(x), math.exp(off[min(len(off) - 1, int(share * len(off)))]) * self._plain(x))

    def observed(self, x: Sequence[float], y: float, now: float) -> None:
        """Learns from one value; `now` in seconds of any clock that never goes back."""
        y = min(max(y, _SHORTEST), _LONGEST)
        self._values.append((x, y, now))
        self._new += 1
        if self._new > len(self._values) // 8:
            self._learn_anew(now)
        else:
            self._off.append(math.log(y / self._plain(x)))
            self._follow_latest()

    def save(self) -> SavedValues:
        """What it learns from, as what JSON can hold. It does not change while nothing is observed."""
        last = self._values[-1][2] if self._values else 0.0
        return [(list(x), y, last - time) for x, y, time in self._values]

    def load(self, saved: object, now: float) -> bool:
        """Takes up what `save` gave, as if the last of it were seen now. False for anything else."""
        values = recognised(saved, SavedValues)
        if values is None or any(len(x) != len(self._prior) or not x[0] for x, _, _ in values):
            return False
        self._values.extend((x, y, now - age) for x, y, age in values)
        if self._values:
            self._learn_anew(now)
        return True

    def _learn_anew(self, now: float) -> None:
        self._fit(now)
        self._new = 0
        self._off.clear()
        self._off.extend(_UNKNOWN)
        self._off.extend(math.log(y / self._plain(x)) for x, y, _ in self._values)
        self._follow_latest()

    def _follow_latest(self) -> None:
        latest = sorted([*self._off][-min(_LATEST, len(self._values)) :])
        middle = len(latest) // 2
        self._factor = math.exp((latest[middle] + latest[~middle]) / 2)

    def _plain(self, x: Sequence[float]) -> float:
        return sum(each * factor for each, factor in zip(x, self._coefficients, strict=True))

    def _fit(self, now: float) -> None:
        """Draws each coefficient, as strongly as one value would, towards the prior's common multiple."""
        outputs = np.array([y for _, y, _ in self._values])
        inputs = np.array([x for x, _, _ in self._values]) * (self._prior / outputs[:, None])
        counts = 0.5 ** ((now - np.array([time for _, _, time in self._values])) / _HALF_LIFE)
        common = 1 / float(np.median(inputs.sum(axis=1)))
        inputs *= common
        found = np.array(self._coefficients) / (common * self._prior)
        for _ in range(_ROUNDS):
            error = np.maximum(np.abs(inputs @ found - 1), _EXACT)
            weighted = (inputs * (counts / error)[:, None]).T
            matrix = weighted @ inputs
            pull = np.diag(matrix) / counts.sum() + 1e-9
            found = _bounded(matrix + np.diag(pull), weighted.sum(axis=1) + pull, found)
        self._coefficients = (common * found * self._prior).tolist()


def _bounded(matrix: Floats, right: Floats, start: Floats) -> Floats:
    """The x >= _LEAST for which x·matrix·x - 2·right·x is least; matrix (K, K) is positive definite."""
    free = np.linalg.solve(matrix, right)
    if (free >= _LEAST).all():
        return np.asarray(free)
    rows, wanted, found = matrix.tolist(), right.tolist(), start.tolist()
    for _ in range(_SWEEPS):
        for at, row in enumerate(rows):
            rest = sum(each * factor for each, factor in zip(row, found, strict=True)) - row[at] * found[at]
            found[at] = max(_LEAST, (wanted[at] - rest) / row[at])
    return np.array(found)
