"""Budgets that hold: the most a request may cost is reserved before it runs, and settled once it has.

Amounts are whole numbers of billionths of the currency that prices are given in, so that sums are exact. A
day is a day of UTC; an answer counts to the day on which it began. What was open when a server ended counts
in full, where a day's budget binds it: after that, less may be spent than the budget has, never more.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass, field
from datetime import datetime, timezone

from headrace.errors import RequestError
from headrace.routing.ledger import Reservation, Spent, shown
from headrace.routing.pace import DAY_SECONDS, allowance
from headrace.routing.store import Store
from headrace.routing.tables import BudgetTable

log = logging.getLogger("headrace.routing")

NANO = 10**9
_REQUESTS_REMEMBERED = 10_000
"""So many requests whose attempts have all ended may yet have another."""


class OverBudget(RequestError):  # noqa: N818 - what it says of the request, not that something broke
    """402: the request may cost more than a budget has left. `renews`: seconds since 1970, None: never."""

    def __init__(self, message: str, renews: float | None):
        super().__init__(message, status=402, code="budget_exceeded")
        self.renews = renews


@dataclass
class _Request:
    cost: int = 0
    """Of all its attempts, in billionths; what is set aside is in it."""
    open: dict[int, Reservation] = field(default_factory=dict)
    """By attempt."""


class Budgets:
    """The budgets of one server. One that has its own in `keys` is not bound by `per_key_day`."""

    def __init__(self, table: BudgetTable, store: Store):
        self._ledger = store.ledger
        self._per_request = _nano(table.per_request)
        self._per_day = _nano(table.per_day)
        self._per_key_day = _nano(table.per_key_day)
        self._keys = {name: round(amount * NANO) for name, amount in table.keys.items()}
        self._requests: dict[str, _Request] = {}

    def reserve(self, request_id: str, key: str, most: int, now: float, attempt: int = 0) -> None:
        """Sets the most aside that an attempt can cost; `now` is in seconds since 1970.

        Raises OverBudget where a budget has not so much left, and then sets nothing aside; RequestError, 503,
        where a budget binds the request and cannot be looked after, for the file cannot be written.
        """
        request = self._requests.get(request_id) or _Request()
        assert most >= 0 and attempt not in request.open
        if self._per_request is not None and request.cost + most > self._per_request:
            raise _over("per_request", self._per_request, self._per_request - request.cost, most, None)
        day = int(now // DAY_SECONDS)
        wanted = Reservation(request_id, attempt, key, day, most)
        if self._binds_daily(key):
            self._set_aside(wanted)
        request.open[attempt] = wanted
        request.cost += most
        self._remember(request_id, request)

    def _binds_daily(self, key: str) -> bool:
        """Whether what is spent in a day is limited; else nothing is written before it is spent."""
        return self._per_day is not None or self._key_limit(key) is not None

    def _key_limit(self, key: str) -> int | None:
        return self._keys.get(key, self._per_key_day)

    def _set_aside(self, wanted: Reservation) -> None:
        key_limit = self._key_limit(wanted.key)
        try:
            spent = self._ledger.reserve(wanted, self._per_day, key_limit)
        except sqlite3.Error as error:
            log.error("spend cannot be written: %s", error)
            raise _unavailable() from error
        if spent is not None:
            raise self._over_a_days(spent, wanted, key_limit)

    def settle(self, request_id: str, actual: int, attempt: int = 0) -> None:
        """An attempt has ended and cost `actual`: the rest of what was set aside is free again.

        More than was set aside is recorded, too, and logged. Does nothing where nothing is set aside.
        """
        assert actual >= 0
        request = self._requests.get(request_id)
        if request is None or attempt not in request.open:
            return
        made = request.open.pop(attempt)
        if actual > made.amount:
            log.warning(
                "%s cost %s, more than the %s it was said to cost at most",
                request_id,
                shown(actual),
                shown(made.amount),
            )
        write = self._ledger.settle if self._binds_daily(made.key) else self._ledger.spend
        try:
            write(made, actual)
        except sqlite3.Error as error:
            log.error("spend of %s cannot be written: %s", shown(actual), error)
            return
        request.cost += actual - made.amount

    def release(self, request_id: str, attempt: int = 0) -> None:
        """An attempt has ended, or was never begun, at no cost."""
        self.settle(request_id, 0, attempt)

    def left(self, key: str, now: float) -> int | None:
        """The most that a new request of this key may cost; None: no budget.

        Raises RequestError, 503, where a budget binds it and its file cannot be read.
        """
        if not self._binds_daily(key):
            return self._per_request
        left = [budget - spent for budget, spent in self._of_day(key, now)]
        left += [self._per_request] if self._per_request is not None else []
        return max(0, min(left))

    def in_pace(self, key: str, now: float) -> int | None:
        """What a new request of this key may cost without getting ahead of the pace of a day's budgets.

        Below 0 where they are ahead; None: no budget of a day. What is set aside counts as spent. Raises as
        `left`.
        """
        if not self._binds_daily(key):
            return None
        return min(allowance(budget, now) - spent for budget, spent in self._of_day(key, now))

    def _of_day(self, key: str, now: float) -> list[tuple[int, int]]:
        """Each budget of this day that binds the key, and what is spent of it."""
        try:
            spent = self._ledger.spent(int(now // DAY_SECONDS), key)
        except sqlite3.Error as error:
            log.error("spend cannot be read: %s", error)
            raise _unavailable() from error
        key_limit = self._key_limit(key)
        binding = [(self._per_day, spent.all)] if self._per_day is not None else []
        return binding + ([(key_limit, spent.key)] if key_limit is not None else [])

    def _over_a_days(self, spent: Spent, wanted: Reservation, key_limit: int | None) -> OverBudget:
        renews = float((wanted.day + 1) * DAY_SECONDS)
        if key_limit is not None and spent.key + wanted.amount > key_limit:
            name = f"keys.{wanted.key}" if wanted.key in self._keys else "per_key_day"
            return _over(name, key_limit, key_limit - spent.key, wanted.amount, renews)
        assert self._per_day is not None
        return _over("per_day", self._per_day, self._per_day - spent.all, wanted.amount, renews)

    def _remember(self, request_id: str, request: _Request) -> None:
        self._requests.pop(request_id, None)
        self._requests[request_id] = request
        if len(self._requests) > _REQUESTS_REMEMBERED:
            oldest = next(iter(self._requests))
            forgotten = self._requests.pop(oldest)
            if forgotten.open:
                self._requests[oldest] = forgotten


def _unavailable() -> RequestError:
    return RequestError(
        "The budget cannot be looked after now: its file cannot be used.",
        status=503,
        code="budget_unavailable",
    )


def _nano(amount: float | None) -> int | None:
    return None if amount is None else round(amount * NANO)


def _over(name: str, limit: int, left: int, most: int, renews: float | None) -> OverBudget:
    when = ""
    if renews is not None:
        when = f" It renews at {datetime.fromtimestamp(renews, timezone.utc):%Y-%m-%d %H:%M} UTC."
    return OverBudget(
        f"The budget {name} of {shown(limit)} has {shown(max(0, left))} left, "
        f"and this request may cost {shown(most)}.{when}",
        renews,
    )
