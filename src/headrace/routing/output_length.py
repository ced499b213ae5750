"""How many tokens a model's answer will have, learnt from how long its answers were.

The logarithm of the length is a linear function of a few cues of the prompt, learnt by recursive least
squares with forgetting. Answers that were cut off count as at least as long as was expected of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from headrace.routing.learner import recognised

_READ = 300
"""Characters of each end of a prompt that are searched for wording."""

_SHORT = ("one word", "briefly", "short", "only the", "just the", "yes or no", "answer:", "concise")
_LONG = ("explain", "step by step", "detail", "essay", "write", "list", "describe", "story", "function")

_REMEMBERED = 200.0
"""Answers after which one counts 1/e."""

_SURPRISE = 2.0
"""An answer that is further off, in standard deviations, counts as if it were so far off only."""

_USUAL = math.log(150.0)
_SPREAD = 1.0
"""Of the logarithm, before anything is known."""

_LEAST_SPREAD, _MOST_SPREAD = 0.1, 1.5
_LONGEST = math.log(1e6)

_DOUBT = 2.0
"""Answers' worth of trust in what is taken for granted before."""


def cues_of(prompt: str) -> tuple[float, ...]:
    """What a prompt tells of its answer's length; the same for all models."""
    text = prompt if len(prompt) <= 2 * _READ else prompt[:_READ] + " " + prompt[-_READ:]
    text = text.lower()
    return (
        1.0,
        math.log1p(len(prompt)) / 5 - 1,
        float(text.rstrip().endswith("?")),
        float(any(word in text for word in _SHORT)),
        float(any(word in text for word in _LONG)),
        float("```" in text or "def " in text),
        float("\na" in text and "\nb" in text),
    )


_CUES = len(cues_of(""))


_Sum = Annotated[float, Meta(ge=-1e9, le=1e9)]


class _Saved(msgspec.Struct):
    """Sums over all answers, the older the less."""

    matrix: list[list[_Sum]]
    right: list[_Sum]
    errors: Annotated[float, Meta(ge=0, le=1e9)]
    count: Annotated[float, Meta(gt=0, le=1e9)]


class OutputLength:
    """Of one model. A prompt comes as its `cues_of`."""

    def __init__(self) -> None:
        self._prior = np.zeros(_CUES)
        self._prior[0] = _USUAL
        self._weights: list[float] = self._prior.tolist()
        self._matrix: NDArray[np.float64] = np.zeros((_CUES, _CUES))
        self._right: NDArray[np.float64] = np.zeros(_CUES)
        self._errors = _DOUBT * _SPREAD**2
        """Sum of squared errors of the logarithm, the older the less, over `_count` answers."""
        self._count = _DOUBT

    def expected(self, cues: Sequence[float], most: int) -> float:
        """The mean number of tokens of an answer that is cut off after `most`; at least 1.

        The mean, for costs add up: it is above the median. Lengths are taken to be distributed log-normally.
        """
        middle, spread = self._logarithm(cues), self._spread
        limit = math.log(max(1, most))
        whole = math.exp(middle + spread**2 / 2) * _normal((limit - middle) / spread - spread)
        cut = most * _normal((middle - limit) / spread)
        return min(max(1.0, whole + cut), float(max(1, most)))

    def observed(self, cues: Sequence[float], tokens: int, cut: bool) -> None:
        """An answer had so many tokens; `cut`: it would have had more, but for a limit or a client."""
        middle, spread = self._logarithm(cues), self._spread
        off = (math.log(max(1, tokens)) - middle) / spread
        if cut:
            off = _beyond(min(off, _SURPRISE))
        off = min(max(off, -_SURPRISE), _SURPRISE)
        x, keep = np.array(cues), math.exp(-1 / _REMEMBERED)
        self._matrix = keep * self._matrix + np.outer(x, x)
        self._right = keep * self._right + x * (middle + off * spread)
        self._errors = keep * self._errors + (off * spread) ** 2
        self._count = keep * self._count + 1
        self._solve()

    def save(self) -> dict[str, Any]:
        """All that is known, as what JSON can hold. It does not change while nothing is observed."""
        saved: dict[str, Any] = msgspec.to_builtins(
            _Saved(self._matrix.tolist(), self._right.tolist(), self._errors, self._count)
        )
        return saved

    def load(self, saved: object, now: float) -> bool:
        """Takes up what `save` gave, however long ago. False for anything else."""
        known = recognised(saved, _Saved)
        if known is None or {len(known.matrix), *map(len, [known.right, *known.matrix])} != {_CUES}:
            return False
        matrix = np.array(known.matrix, np.float64)
        if not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] < -_DOUBT / 2:
            return False
        self._matrix, self._right = matrix, np.array(known.right, np.float64)
        self._errors, self._count = known.errors, known.count
        self._solve()
        return True

    def _solve(self) -> None:
        pulled = self._matrix + _DOUBT * np.eye(_CUES)
        self._weights = np.linalg.solve(pulled, self._right + _DOUBT * self._prior).tolist()

    @property
    def _spread(self) -> float:
        return min(max(math.sqrt(self._errors / self._count), _LEAST_SPREAD), _MOST_SPREAD)

    def _logarithm(self, cues: Sequence[float]) -> float:
        value = sum(cue * weight for cue, weight in zip(cues, self._weights, strict=True))
        return min(max(value, 0.0), _LONGEST)


def _normal(z: float) -> float:
    """The normal distribution's share below z."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _beyond(z: float) -> float:
    """The mean of what lies above z of a normal distribution."""
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / _normal(-z)
