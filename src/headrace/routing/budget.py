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
    """402: the request may cost more than a budget has left; 400: it can never fit into one of a request.

    `renews`: seconds since 1970, None: never. `soon`: it may fit as soon as open requests have ended.
    """

    def __init__(self, message: str, renews: float | None = None, *, never: bool = False, soon: bool = False):
        status, code = (400, "max_cost") if never else (402, "budget_exceeded")
        super().__init__(message, status=status, code=code)
        self.renews = renews
        self.soon = soon


@dataclass(frozen=True)
class Shortage:
    """Why a budget does not allow what a request may cost; amounts in billionths."""

    budget: str
    """Its name: per_request, per_day, per_key_day, keys.NAME."""
    limit: int
    left: int
    most: int
    """That the request may cost."""
    held: int = 0
    """Of what is not left: set aside for requests that have not ended."""
    renews: float | None = None
    """Seconds since 1970; None: never."""

    @property
    def never(self) -> bool:
        """The request can never fit."""
        return self.renews is None and self.most > self.limit

    @property
    def soon(self) -> bool:
        """It may fit as soon as those have ended, for most cost less than they may."""
        return 0 < self.most - self.left <= self.held

    @property
    def error(self) -> OverBudget:
        """What a client is told."""
        held = when = ""
        if self.soon:
            held = f" ({shown(self.held)} more is set aside for requests that have not ended)"
        if self.renews is not None:
            when = f" It renews at {datetime.fromtimestamp(self.renews, timezone.utc):%Y-%m-%d %H:%M} UTC."
        return OverBudget(
            f"The budget {self.budget} of {shown(self.limit)} has {shown(max(0, self.left))} left{held}, "
            f"and this request may cost {shown(self.most)}.{when}",
            self.renews,
            never=self.never,
            soon=self.soon,
        )


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
            raise Shortage("per_request", self._per_request, self._per_request - request.cost, most).error
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
            raise self._short_of_day(wanted.key, wanted.day, wanted.amount, spent)[0].error

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
        left = [limit - spent for _, limit, spent in self._of_day(key, self._spent(now, key))]
        left += [self._per_request] if self._per_request is not None else []
        return max(0, min(left))

    def shortage(self, key: str, most: int, now: float) -> Shortage | None:
        """Which budget does not allow a new request of this key that may cost `most`; None: all do.

        Raises as `left`.
        """
        if self._per_request is not None and most > self._per_request:
            return Shortage("per_request", self._per_request, self._per_request, most)
        if not self._binds_daily(key):
            return None
        short = self._short_of_day(key, int(now // DAY_SECONDS), most, self._spent(now, key))
        return short[0] if short else None

    def in_pace(self, key: str, now: float) -> int | None:
        """What a new request of this key may cost without getting ahead of the pace of a day's budgets.

        Below 0 where they are ahead; None: no budget of a day. What is set aside counts as spent. Raises as
        `left`.
        """
        if not self._binds_daily(key):
            return None
        of_day = self._of_day(key, self._spent(now, key))
        return min(allowance(limit, now) - spent for _, limit, spent in of_day)

    def _spent(self, now: float, key: str) -> Spent:
        try:
            return self._ledger.spent(int(now // DAY_SECONDS), key)
        except sqlite3.Error as error:
            log.error("spend cannot be read: %s", error)
            raise _unavailable() from error

    def _of_day(self, key: str, spent: Spent) -> list[tuple[str, int, int]]:
        """Each budget of a day that binds the key, its limit, and what is spent of it."""
        key_limit = self._key_limit(key)
        binding = [] if self._per_day is None else [("per_day", self._per_day, spent.all)]
        if key_limit is not None:
            name = f"keys.{key}" if key in self._keys else "per_key_day"
            binding.append((name, key_limit, spent.key))
        return binding

    def _short_of_day(self, key: str, day: int, most: int, spent: Spent) -> list[Shortage]:
        """The budgets that do not allow it, one that open requests give back soon at the end."""
        try:
            held = self._ledger.held(day, key)
        except sqlite3.Error as error:
            log.error("spend cannot be read: %s", error)
            raise _unavailable() from error
        renews = float((day + 1) * DAY_SECONDS)
        of_day = self._of_day(key, spent)
        short = [
            Shortage(
                name, limit, limit - used, most, held.all if name == "per_day" else held.key, renews=renews
            )
            for name, limit, used in of_day
            if used + most > limit
        ]
        return sorted(short, key=lambda each: (each.soon, each.budget == "per_day"))

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
