"""What a routed answer says of its route, in its usage."""

from __future__ import annotations

from msgspec import Struct


class RouteReport(Struct):
    """Which model answered, why, and what that cost."""

    policy: str
    """What the request named: a policy, or the model itself."""
    model: str
    tier: str
    why: str
    cost: float
    """Of everything that was done for the request, in the currency of the prices."""
    attempts: list[str]
    """The models that were tried, in that order; several where one failed, was slow, or was not sure."""
    continued_by: list[str]
    """Models that went on with an answer after the one before broke off."""
