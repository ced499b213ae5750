"""Candidates made for tests."""

from __future__ import annotations

from headrace.routing.candidate import Candidate


def candidate(
    name: str,
    *,
    good: float = 0.8,
    will_do: bool = True,
    cost: float = 0.01,
    most_cost: float | None = None,
    first_token: float = 0.1,
    per_token: float = 0.01,
    refused: str = "",
    last: bool = False,
    wait: float = 0.0,
) -> Candidate:
    """A model that can answer, unless told otherwise; at most it costs the double."""
    most = 2 * cost if most_cost is None else most_cost
    return Candidate(
        name, "local", good, 0.05, will_do, 100, 50.0, cost, most, first_token, per_token, refused, last, wait
    )
