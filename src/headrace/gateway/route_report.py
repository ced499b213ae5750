"""What a routed answer says of its route, in its usage and in its headers."""

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


def report_headers(report: RouteReport, **more: str) -> list[tuple[bytes, bytes]]:
    """The report as headers x-headrace-…, all but the cost; and `more`, by the rest of their names."""
    told = {
        "model": report.model,
        "tier": report.tier,
        "policy": report.policy,
        "why": report.why,
        "attempts": ",".join(report.attempts),
        **more,
    }
    return [(f"x-headrace-{name.replace('_', '-')}".encode(), _ascii(value)) for name, value in told.items()]


def whole_billionths(cost: float) -> float:
    """A cost without the digits that no amount has."""
    return round(cost, 9)


def money(cost: float) -> str:
    """A cost as a header has it."""
    return f"{cost:.9f}"


def _ascii(text: str) -> bytes:
    """As a header may have it."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:500].encode()
