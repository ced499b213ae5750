"""Noticing that a mean has moved, after any number of looks: e-detectors made of bets.

A detector bets, observation by observation, that a mean is above 0. Where it never is, no bet wins on
average; so a capital that starts afresh from 1 whenever it has lost, as a CUSUM does, takes at least c
observations on average to reach c (Shin, Ramdas & Rinaldo, 2023, arXiv:2203.03532). Nothing is assumed of the
observations but their lower bound: they may depend on those before, and come as often as one likes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SELDOM = 1000.0
"""Where nothing is to be noticed, a detector's alarms are at least so many observations apart on average.

So the theory; in simulations at the very edge of a promise they were some 20 times as far apart. A fall of a
tenth below what is promised was noticed after 300 observations, one of a fifth after 100.
"""

_STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Shares of the capital that are bet, side by side: small ones for small shifts, large ones for large."""

_LOWEST = -1.2
"""Observations are no lower, so that no bet loses all."""

_REFERENCE = 200
"""Residuals that say what is usual."""

_TOLERATED = 0.05
"""A shift of a calibration by no more is none."""


@dataclass
class Detector:
    """Tells that the mean of what it is given is above 0. Observations are at least -1.2."""

    capital: list[float] = field(default_factory=lambda: [1.0] * len(_STAKES))

    @property
    def evidence(self) -> float:
        """From about 1, nothing, to SELDOM, an alarm."""
        return sum(self.capital) / len(self.capital)

    def saw(self, value: float) -> bool:
        """Takes one observation. True is an alarm, after which it begins anew."""
        assert value >= _LOWEST
        self.capital = [
            max(held, 1.0) * (1.0 + stake * value) for held, stake in zip(self.capital, _STAKES, strict=True)
        ]
        if alarm := self.evidence >= SELDOM:
            self.capital = [1.0] * len(_STAKES)
        return alarm


@dataclass
class Calibration:
    """Whether what comes of a model's answers still differs as usual from what was estimated.

    The first residuals (score less estimate, from -1 to 1) say what is usual: an estimator need not be right,
    but stay as wrong as it was. A shift counts that goes beyond what is tolerated, and beyond what those
    could err by (three standard errors).
    """

    count: int = 0
    mean: float = 0.0
    """Of the residuals that say what is usual."""
    squares: float = 0.0
    """The sum of their squared differences from the mean."""
    up: Detector = field(default_factory=Detector)
    down: Detector = field(default_factory=Detector)

    @property
    def evidence(self) -> float:
        """As a detector's."""
        return max(self.up.evidence, self.down.evidence)

    def saw(self, residual: float) -> bool:
        """Takes a residual. True: the mean has shifted."""
        if self.count < _REFERENCE:
            self.count += 1
            before = residual - self.mean
            self.mean += before / self.count
            self.squares += before * (residual - self.mean)
            return False
        margin = _TOLERATED + 3 * math.sqrt(self.squares) / self.count
        shift = residual - self.mean
        up = self.up.saw((shift - margin) / 2)
        down = self.down.saw((-shift - margin) / 2)
        return up or down
