"""How much of the machine processes took that are not ours, while something was measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE, _WAITING, _COLUMNS = 3, 4, 8
"""Columns of the first line of /proc/stat, see proc(5)."""


class Others:
    """Counts from when it is made.

    Processes of a low priority count too: Linux may weigh priorities within a terminal's session alone.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._taken = _all() - _ours()

    def share(self) -> float:
        """Of all cores."""
        seconds = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return max(0.0, _all() - _ours() - self._taken) / seconds


def _all() -> float:
    """Seconds of cores since the machine was started; what a host beneath it took away included."""
    columns = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : 1 + _COLUMNS]
    return sum(int(c) for i, c in enumerate(columns) if i not in (_IDLE, _WAITING)) / _TICKS


def _ours() -> float:
    """Seconds of this process, of all that it has waited for, and of all that descend from it."""
    stats = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        stats[int(file.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    ours, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, (parent, _) in stats.items() if parent in ours} - ours
        grown = bool(more)
        ours |= more
    return sum(stats[pid][1] for pid in ours) / _TICKS
