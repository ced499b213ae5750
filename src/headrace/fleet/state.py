"""What a replica is for and where it stands, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Role = Literal["both", "prefill", "decode"]
"""What a replica is for. Every worker can do everything: the role is a matter of what the fleet sends it."""


class State(str, Enum):
    """Where a replica stands."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    LOST = "lost"
    """Nothing has been heard of it for a while; it may come back."""
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    """Given up: the model cannot be loaded, or the worker ended again and again while loading it."""


COMING = frozenset({State.STARTING, State.RESTARTING, State.LOST})
"""States of a replica that may soon be ready, so that requests wait for it."""


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """A replica as /health shows it."""

    name: str
    model: str
    role: Role
    state: State
    pid: int | None
    fingerprint: str | None
    """Digest of the numerics fingerprint, None before the first worker was loaded."""
    restarts: int
    reason: str
    """Why the last worker ended; empty where none has."""
