"""One request's money: what its attempts set aside, and what they cost."""

from __future__ import annotations

import time

from headrace.routing.budget import Budgets, OverBudget
from headrace.routing.candidate import Candidate
from headrace.routing.pricing import nano


class Accounts:
    """Of one request; without budgets and a limit of its own it does nothing."""

    def __init__(self, budgets: Budgets, request_id: str, key: str, limit: float | None = None):
        """`key` is the name of who asks, `limit` what all attempts together may cost."""
        self._budgets = budgets
        self._id = request_id
        self._key = key
        self._limit = limit
        self._costs: dict[int, int] = {}
        """Of each attempt, in billionths: what is set aside, later what was spent."""

    def reserve(self, number: int, candidate: Candidate) -> None:
        """The most that the attempt of this number can cost. Raises OverBudget."""
        self.reserve_cost(number, candidate.most_cost)

    def reserve_cost(self, number: int, most: float) -> None:
        """The same, for an attempt that can cost so much at most."""
        amount = nano(most)
        if self._limit is not None and sum(self._costs.values()) + amount > nano(self._limit):
            raise OverBudget(f"max_cost of {self._limit:g} does not allow another attempt.", None)
        self._budgets.reserve(self._id, self._key, amount, time.time(), number)
        self._costs[number] = amount

    def settle(self, number: int, cost: float) -> None:
        """The attempt has ended; does nothing where nothing was set aside."""
        if number in self._costs:
            self._costs[number] = nano(cost)
            self._budgets.settle(self._id, nano(cost), number)
