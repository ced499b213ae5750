"""A routed request once it is decided: who may answer it, who shall, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.gateway.asking import Asking
from headrace.gateway.routed.accounts import Accounts
from headrace.gateway.routed.member import Foreseen
from headrace.gateway.routed.need import Need
from headrace.gateway.routed.rule import Rule
from headrace.routing.candidate import Candidate
from headrace.routing.policy import Plan
from headrace.routing.pricing import RemotePrice
from headrace.routing.wants import Wants


@dataclass(frozen=True)
class Route:
    """The decision."""

    id: str
    rule: Rule
    """What the request named: a policy, or a model."""
    asking: Asking
    need: Need
    wants: Wants
    candidates: Mapping[str, Candidate]
    foreseen: Mapping[str, Foreseen]
    prices: Mapping[str, RemotePrice]
    """At the time of the decision: what was set aside and what is paid go by the same."""
    plan: Plan
    best: str
    """The model of the policy with the best expected quality; "" where one model is all there is."""
    accounts: Accounts

    @property
    def choice(self) -> Candidate:
        """The first of the plan."""
        return self.candidates[self.plan.order[0]]

    def explained(self) -> Sequence[Candidate]:
        """All candidates, in the plan's order, those that are not in it last."""
        order = {name: place for place, name in enumerate(self.plan.order)}
        return sorted(self.candidates.values(), key=lambda each: order.get(each.name, len(order)))
