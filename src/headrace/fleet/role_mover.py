"""When a fleet of fixed size should divide its workers otherwise: rarely, and only where that pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.fleet.forecast import Forecast, Pools
from headrace.fleet.planner import Limits
from headrace.fleet.state import Role


class Patience(NamedTuple):
    """How sure it must be."""

    margin: float = 1.25
    """How many times as strained the limits must be as with the other division."""
    confirmations: int = 3
    """Looks in a row that must agree."""
    rest: float = 60.0
    """Seconds from one change to the next at the least."""


class RoleMover:
    """Looks at forecasts from time to time; time is passed in.

    A division that keeps the limits stays, however much better another one would be: so the load must change
    before roles do.
    """

    def __init__(self, limits: Limits, patience: Patience | None = None):
        self._limits = limits
        self._patience = patience or Patience()
        self._wanted: Pools | None = None
        self._agreed = 0
        self._moved: float | None = None

    def look(self, now: float, current: Pools, told: Iterable[tuple[Pools, Forecast]]) -> Pools | None:
        """The division to change to now; None to stay. `told` has forecasts for all of them."""
        strains = {pools: self._limits.strain(forecast) for pools, forecast in told}
        best = min(strains, key=lambda pools: strains[pools])
        strain = strains.get(current)
        if strain is None:  # roles that somebody mixed: whatever is told is not told of these
            strain = self._patience.margin * max(strains[best], 1.0) * 1.01
        if strain <= 1 or strain < self._patience.margin * strains[best]:
            self._wanted, self._agreed = None, 0
            return None
        self._agreed = self._agreed + 1 if best == self._wanted else 1
        self._wanted = best
        resting = self._moved is not None and now - self._moved < self._patience.rest
        if self._agreed < self._patience.confirmations or resting:
            return None
        self._moved, self._wanted, self._agreed = now, None, 0
        return best


def moves(roles: Mapping[str, Role], wanted: Pools) -> list[tuple[str, Role]]:
    """Which workers, by name, become what: as few as can be, in an order that always leaves some for all."""
    left: dict[Role, int] = {"both": wanted.both, "prefill": wanted.prefill, "decode": wanted.decode}
    others = []
    for name, role in roles.items():
        if left[role]:
            left[role] -= 1
        else:
            others.append(name)
    needed: list[Role] = [role for role, count in left.items() for _ in range(count)]
    return [(name, role) for name, role in zip(others, needed, strict=True)]
