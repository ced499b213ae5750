"""What a request can name to be routed: a policy, or one model of the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.gateway.routed.mishaps import Mishaps
from headrace.routing.candidate import Candidate
from headrace.routing.policies import Cheapest
from headrace.routing.policy import Plan, Policy
from headrace.routing.tables import PolicyTable
from headrace.routing.wants import Wants
from headrace.routing.watch import Watch


@dataclass(frozen=True)
class Rule:
    """A policy as it is in use, or a single model that a request names."""

    name: str
    table: PolicyTable
    policy: Policy
    models: Sequence[str]
    watch: Watch | None = None
    """Over its promise of quality; None where it makes none."""
    columns: Mapping[str, int] = field(default_factory=dict)
    """Of each model, its place in the watch's; tiers of the same weights share one."""
    mishaps: Mishaps = field(default_factory=Mishaps)

    @property
    def named(self) -> bool:
        """A request named the one model: what that cannot do it says itself."""
        return isinstance(self.policy, Named)


class Named(Policy):
    """The one model that a request names."""

    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        """That model, whatever its quality."""
        plan = Cheapest(self.table).plan(wants, candidates)
        return Plan(plan.order, "named by the request")
