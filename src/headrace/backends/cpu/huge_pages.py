"""Huge pages, which save the processor address look-ups: on small ones decode is a fifth slower."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def advise(pages: mmap.mmap) -> None:
    """Asks for huge pages; no matter whether the system knows them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            return


def available() -> bool:
    """Whether memory of a process may lie on them."""
    try:
        return "[never]" not in _SETTING.read_text()
    except OSError:
        return False


def share(memory: NDArray[np.uint8], smaps: Path = Path("/proc/self/smaps")) -> float:
    """How much of the mapped file in which `memory` lies is on huge pages, from 0 to 1."""
    address, inside, size = memory.ctypes.data, False, 0
    try:
        lines = smaps.read_text().splitlines()
    except OSError:
        return 0.0
    for line in lines:
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            first, last = (int(end, 16) for end in name.split("-"))
            inside, size = first <= address < last, last - first
        elif inside and name == "FilePmdMapped:":
            return int(rest.split()[0]) * 1024 / size
    return 0.0
