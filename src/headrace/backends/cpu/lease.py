"""Cores leased between the processes of a user; native/core_lease.h says how."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from headrace._native import CoreLease

__all__ = ["CoreLease", "lease_file", "open_lease"]

log = logging.getLogger("headrace.worker")


def lease_file(group: str = "") -> Path:
    """The file that this user's processes lease cores by; `group` is part of its name.

    It lies where only the user may write, if there is such a place, else in /tmp by the user's number.
    """
    user = os.geteuid()
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}")
    if not os.access(folder, os.W_OK):
        folder = Path("/tmp")
    return folder / f"headrace-cores-{user}{group}"


def open_lease(file: Path, cores: Sequence[int], threads: int) -> CoreLease | None:
    """A lease of as many of these cores as there are threads; None where the file cannot be had."""
    try:
        return CoreLease(str(file), list(cores), threads)
    except RuntimeError as error:  # std::system_error
        log.warning("cores are not shared by turns with other workers: %s: %s", file, error)
        return None
