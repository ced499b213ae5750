"""One request's money: what its attempts set aside, and what they cost."""

from __future__ import annotations

import time

from headrace.gateway.errors import UnavailableError
from headrace.routing.budget import Budgets, OverBudget
from headrace.routing.candidate import Candidate
from headrace.routing.ledger import plain, shown
from headrace.routing.pricing import nano

SOON = 1.0
"""Seconds after which to ask again where open requests may give back what they set aside."""


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
        """The most that the attempt of this number can cost. Raises OverBudget; UnavailableError, 402 too,
        where it may fit soon.
        """
        self.reserve_cost(number, candidate.most_cost)

    def reserve_cost(self, number: int, most: float) -> None:
        """The same, for an attempt that can cost so much at most."""
        amount = nano(most)
        if self._limit is not None and sum(self._costs.values()) + amount > nano(self._limit):
            never = amount > nano(self._limit)
            why = f"is too low: this may cost {shown(amount)}" if never else "does not allow another attempt"
            raise OverBudget(f"max_cost of {plain(self._limit)} {why}.", never=never)
        try:
            self._budgets.reserve(self._id, self._key, amount, time.time(), number)
        except OverBudget as error:
            if not error.soon:
                raise
            code = error.code or ""
            raise UnavailableError(
                str(error), status=error.status, code=code, retry_after=round(SOON)
            ) from None
        self._costs[number] = amount

    def settle(self, number: int, cost: float) -> None:
        """The attempt has ended; does nothing where nothing was set aside."""
        if number in self._costs:
            self._costs[number] = nano(cost)
            self._budgets.settle(self._id, nano(cost), number)
