"""Policies as users write them: some that work, and some that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.routing.candidate import Candidate
from headrace.routing.policy import Plan, Policy
from headrace.routing.wants import Wants


class AsListed(Policy):
    """The order of the file, whatever it costs; options go into the plan."""

    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        names = tuple(each.name for each in candidates if not each.refused)
        return Plan(names, "as they are listed", **self.table.options)


class Raising(Policy):
    """Knows no answer."""

    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        raise ZeroDivisionError("a bug")


class Greedy(Policy):
    """Takes what it is given to pieces."""

    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        assert isinstance(candidates, list)
        candidates.clear()
        return Plan((), "none is left")


class Anything(Policy):
    """Gives what its options have, which may be no plan at all."""

    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        given: Any = dict(self.table.options)
        if not given:
            return None  # type: ignore[return-value]
        return Plan(**({"order": ("near",), "why": "so"} | given))
