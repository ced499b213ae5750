"""What a step costs by its number of rows, learned from steps that were timed."""

from __future__ import annotations

_MEMORY = 0.03
"""Weight of the newest observation: some thirty steps are remembered."""
_PRIOR = 0.5
"""How much the cost of a row that was assumed weighs against what is observed; a variance, in rows²."""


class StepCost:
    """A line through the recent observations of (rows, seconds).

    Where they are all of the same number of rows its slope is the one assumed, in proportion.
    """

    def __init__(self, row_cost: float):
        """`row_cost`: what each further row is assumed to cost, as a part of a step of one row."""
        self._row_cost = row_cost
        self._rows = self._seconds = 1.0
        """Moving averages; with the variance and the covariance below they make the line."""
        self._variance = self._covariance = 0.0
        self._observed = False

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if not self._observed:
            self._rows, self._seconds, self._observed = float(rows), seconds, True
            return
        # A step that the machine was disturbed in says little about its rows.
        seconds = min(seconds, 3 * self.seconds(rows))
        by_rows, by_seconds = rows - self._rows, seconds - self._seconds
        self._rows += _MEMORY * by_rows
        self._seconds += _MEMORY * by_seconds
        keep = 1 - _MEMORY
        self._variance = keep * (self._variance + _MEMORY * by_rows * by_rows)
        self._covariance = keep * (self._covariance + _MEMORY * by_rows * by_seconds)

    def seconds(self, rows: int) -> float:
        """What a step of so many rows takes; of one row, before anything is known, 1."""
        return max(self._seconds + self.row_seconds * (rows - self._rows), 1e-9)

    @property
    def row_seconds(self) -> float:
        """What a further row adds."""
        assumed = self._row_cost * self._seconds / (1 + self._row_cost * (self._rows - 1))
        slope = max(self._covariance + _PRIOR * assumed, 0.0) / (self._variance + _PRIOR)
        # However steep the line, a step of no rows would not be free.
        return min(slope, self._seconds / self._rows)
