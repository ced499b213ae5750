"""How long this worker's steps take by their number of rows, as measured: what a planner reckons with."""

from __future__ import annotations

_KEEP = 0.999
"""Weight of what was observed before the newest step: some thousand steps are remembered."""
_OUTLIER = 3.0
"""A step that took so many times what the line says was disturbed, and counts as only so long."""
_ENOUGH = 20.0
"""Steps before anything is told."""


class Pace:
    """The line of least squares through (rows, seconds) of steps, relative to how long they took."""

    def __init__(self) -> None:
        self._count = 0.0
        self._sums = [0.0] * 5
        """Of weight, weight × rows, weight × rows², weight × seconds, weight × rows × seconds."""

    def step(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if rows <= 0 or seconds <= 0:
            return
        base, row = self.line
        if base + row > 0:
            seconds = min(seconds, _OUTLIER * (base + row * rows))
        self._count = _KEEP * self._count + 1
        weight = 1 / seconds**2
        new = (weight, weight * rows, weight * rows**2, weight * seconds, weight * rows * seconds)
        self._sums = [_KEEP * before + value for before, value in zip(self._sums, new, strict=True)]

    @property
    def line(self) -> tuple[float, float]:
        """Seconds of a step, and of each of its rows, none below zero; both 0 while little is known."""
        one, rows, squares, seconds, products = self._sums
        if self._count < _ENOUGH:
            return 0.0, 0.0
        spread = one * squares - rows * rows
        if spread <= 1e-9 * one * squares:
            # All of one size: which part of it is whose cannot be told, so all of it is the rows'.
            return 0.0, seconds / rows
        row = max(0.0, (one * products - rows * seconds) / spread)
        base = (seconds - row * rows) / one
        return (base, row) if base >= 0 else (0.0, products / squares)
