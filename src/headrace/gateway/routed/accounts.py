"""One request's money: what its attempts set aside, and what they cost."""

from __future__ import annotations

import time

from headrace.routing.budget import Budgets
from headrace.routing.candidate import Candidate
from headrace.routing.pricing import nano


class Accounts:
    """Of one request; without budgets it does nothing."""

    def __init__(self, budgets: Budgets, request_id: str, key: str):
        """`key` is the name of who asks."""
        self._budgets = budgets
        self._id = request_id
        self._key = key

    def reserve(self, number: int, candidate: Candidate) -> None:
        """The most that the attempt of this number can cost. Raises OverBudget."""
        self.reserve_cost(number, candidate.most_cost)

    def reserve_cost(self, number: int, most: float) -> None:
        """The same, for an attempt that can cost so much at most."""
        self._budgets.reserve(self._id, self._key, nano(most), time.time(), number)

    def settle(self, number: int, cost: float) -> None:
        """The attempt has ended; does nothing where nothing was set aside."""
        self._budgets.settle(self._id, nano(cost), number)
