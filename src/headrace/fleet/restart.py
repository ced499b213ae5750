"""When a worker that ended is started again, and when it is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Exponential back-off. Times in seconds."""

    first_delay: float = 0.1
    longest_delay: float = 10.0
    """The delay doubles up to this one with every end in a row."""
    stable_after: float = 30.0
    """A worker that served this long before it ended begins a new row."""
    load_attempts: int = 3
    """Ends while loading, in a row, after which the replica is given up."""
    silence: float = 120.0
    """A worker that answers nothing for so long hangs, and is ended. A large model has long steps, too."""


class Restarts:
    """Counts the ends of one replica's workers."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._in_a_row = 0
        self._while_loading = 0
        self._ever_served = False
        self.count = 0
        """Starts after the first one."""

    def ended(self, served: float | None, *, refused: bool) -> float | None:
        """Seconds until the next start, None to give up.

        Args:
            served: how long the worker took requests, None where it ended while loading.
            refused: it ended because the model cannot be loaded. On the very first start that is final: the
                user is there to read why.
        """
        if served is None:
            self._while_loading += 1
            if self._while_loading >= self._policy.load_attempts or (refused and not self._ever_served):
                return None
        else:
            self._ever_served = True
            self._while_loading = 0
        stable = served is not None and served >= self._policy.stable_after
        self._in_a_row = 1 if stable else self._in_a_row + 1
        self.count += 1
        doublings = min(self._in_a_row - 1, 30)
        return min(self._policy.longest_delay, self._policy.first_delay * 2.0**doublings)
