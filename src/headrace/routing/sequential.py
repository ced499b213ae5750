"""The greatest slack that keeps a promise, told while records come, at any time and as often as one likes.

The same as `risk.greatest_slack` does with records that are all there: slacks in a fixed order, the strictest
first, each against the hypothesis that it breaks the promise, up to the first that cannot be shown to keep
it. Here a bet runs on for every slack (Waudby-Smith & Ramdas, 2024, arXiv:2010.09686), each stake sized by
what was seen before it. Its capital ever exceeds 1 / delta with probability at most delta if the slack breaks
the promise (Ville). So looking after every record gives no more chances to be wrong: with probability
1 - delta no slack that is too great is ever shown, as long as traffic stays as it is; for the least of those
would have to be shown with it.

As there, a slack must also keep the quality of the next `horizon` requests, by the normal approximation.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from headrace.routing.risk import ALWAYS_BEST

Floats = NDArray[np.float64]

SLACKS = np.round(np.arange(-0.5, 1.0, 0.005), 3)
"""Those tried, the strictest first. They are the same whatever the records, as the argument needs."""

_BOLDEST = 0.8
"""Of what can be lost at once, the most that is staked."""


@dataclass
class Shown:
    """What records have shown of each slack; lists as long as SLACKS, so that JSON can hold it.

    Of the excesses (the chosen model's score less quality times the best one's): their number, sums and sums
    of squares; the logarithm of the capital won with them, and the most it ever was.
    """

    count: int
    sums: list[float]
    squares: list[float]
    capital: list[float]
    most: list[float]


class Sequential:
    """The evidence for one promise: `quality` times the score of `best`, a column of records."""

    def __init__(
        self, best: int, quality: float, delta: float, window: int, shown: Shown | None = None
    ) -> None:
        """Empty, or as it was when it gave `shown`. It sees soonest what about `window` records can show."""
        nothing = [0.0] * len(SLACKS)
        of = shown or Shown(0, nothing, nothing, nothing, nothing)
        self.count = of.count
        self._best, self._quality, self._delta, self._window = best, quality, delta, window
        self._sums, self._squares = np.array(of.sums), np.array(of.squares)
        self._capital, self._most = np.array(of.capital), np.array(of.most)

    @property
    def shown(self) -> Shown:
        """What it is restored from."""
        lists = [each.tolist() for each in (self._sums, self._squares, self._capital, self._most)]
        return Shown(self.count, *lists)

    def saw(self, good: Floats, scores: Floats) -> None:
        """Takes one record: (C,) and (C,), of models in the order of their cost.

        Models that no slack chooses need no score (NaN).
        """
        will_do = good >= good[self._best] - SLACKS[:, None]
        will_do[:, self._best] = True
        excess = scores[will_do.argmax(axis=1)] - self._quality * scores[self._best]
        seen = self.count + 1
        variance = (self._squares + 0.05) / seen - (self._sums / seen) ** 2
        due = max(self.count, self._window) * variance
        stake = np.minimum(np.sqrt(-2 * np.log(self._delta) / due), _BOLDEST / self._quality)
        self._capital += np.log1p(stake * excess)
        np.maximum(self._most, self._capital, out=self._most)
        self._sums += excess
        self._squares += excess**2
        self.count += 1

    def slack(self, horizon: int) -> float:
        """The greatest slack shown to keep the promise; ALWAYS_BEST where none is."""
        if not self.count:
            return ALWAYS_BEST
        mean = self._sums / self.count
        spread = np.sqrt(np.maximum(self._squares / self.count - mean**2, 0))
        sure = NormalDist().inv_cdf(1 - self._delta)
        likely = mean >= sure * spread * np.sqrt(1 / self.count + 1 / horizon)
        kept = likely & (self._most >= -np.log(self._delta))
        first = len(kept) if kept.all() else int(np.argmin(kept))
        return float(SLACKS[first - 1]) if first else ALWAYS_BEST
