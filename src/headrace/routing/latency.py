"""How long models take to answer, learnt from how long they took.

Of a remote nothing is seen but its answers: `Latency`. For local models the fleet predicts the first token
from what its replicas are doing, and `Correction` learns by how much such predictions are off.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from headrace.routing.learner import recognised
from headrace.routing.regression import Regression, SavedValues

_FIRST_TOKEN = (0.4, 2e-4, 0.01, 1e-6)
"""Seconds before anything is known: at all, for each token of the prompt, and more of both for each other
request that runs at the same time."""

_PER_TOKEN = (0.02, 2e-4)
"""Seconds, and more of them for each other request."""


_REMEMBERED = 96
"""Predictions by which it is known how far corrections reach."""

_DOUBTFUL = 2.0
"""How many times longer what lies beyond them takes at the worst."""


class Latency:
    """One remote model's first token and speed, by the prompt's length and how much else it is asked.

    `in_flight`: other requests that we have running at it when this one is sent.
    """

    def __init__(self) -> None:
        self._first_token = Regression(_FIRST_TOKEN)
        self._per_token = Regression(_PER_TOKEN)

    def first_token(self, input_tokens: int, in_flight: int) -> float:
        """Seconds until the first token, at the median."""
        return self._first_token.predict(_features(input_tokens, in_flight))

    def first_token_by(self, input_tokens: int, in_flight: int, share: float = 0.95) -> float:
        """Seconds after which the first token is there in this share of all cases."""
        return self._first_token.late(_features(input_tokens, in_flight), share)

    def per_token(self, in_flight: int) -> float:
        """Seconds for each further token, at the median."""
        return self._per_token.predict((1.0, in_flight))

    def observed(
        self, input_tokens: int, first_token: float, per_token: float | None, in_flight: int, now: float
    ) -> None:
        """An answer's first token took so long, and each further one; None where there was no further one."""
        self._first_token.observed(_features(input_tokens, in_flight), first_token, now)
        if per_token is not None:
            self._per_token.observed((1.0, in_flight), per_token, now)

    def save(self) -> dict[str, Any]:
        """What it learns from, as what JSON can hold. It does not change while nothing is observed."""
        return {"first_token": self._first_token.save(), "per_token": self._per_token.save()}

    def load(self, saved: object, now: float) -> bool:
        """Takes up what `save` gave, as if the last of it were seen now. False for anything else."""
        if (values := recognised(saved, _SavedLatency)) is None:
            return False
        first = self._first_token.load(values.first_token, now)
        return self._per_token.load(values.per_token, now) and first


class _SavedLatency(msgspec.Struct):
    first_token: SavedValues
    per_token: SavedValues


class Correction:
    """Of predictions that somebody else makes, in seconds: an offset and a factor.

    What short ones were off by in proportion says little of long ones: beyond the longest prediction seen
    lately, each further second is taken at its word.
    """

    def __init__(self) -> None:
        self._regression = Regression((0.001, 1.0))
        self._seen: deque[float] = deque(maxlen=_REMEMBERED)

    def corrected(self, predicted: float) -> float:
        """What it will be, at the median."""
        within, beyond = self._divided(predicted)
        return self._regression.predict((1.0, within)) + beyond

    def by(self, predicted: float, share: float = 0.95) -> float:
        """What it will keep below in this share of all cases."""
        within, beyond = self._divided(predicted)
        return self._regression.late((1.0, within), share) + _DOUBTFUL * beyond

    def observed(self, predicted: float, measured: float, now: float) -> None:
        """What was predicted, uncorrected, took so long."""
        self._seen.append(predicted)
        self._regression.observed((1.0, predicted), measured, now)

    def save(self) -> SavedValues:
        """What it learns from, as what JSON can hold. It does not change while nothing is observed."""
        return self._regression.save()

    def load(self, saved: object, now: float) -> bool:
        """Takes up what `save` gave, as if the last of it were seen now. False for anything else."""
        if not self._regression.load(saved, now):
            return False
        self._seen.extend(predicted for (_, predicted), _, _ in self._regression.save())
        return True

    def _divided(self, predicted: float) -> tuple[float, float]:
        """The part of a prediction that is like those seen, and what lies beyond."""
        reach = max(self._seen, default=predicted)
        return min(predicted, reach), max(0.0, predicted - reach)


def _features(input_tokens: int, in_flight: int) -> tuple[float, ...]:
    return 1.0, float(input_tokens), float(in_flight), float(input_tokens * in_flight)
