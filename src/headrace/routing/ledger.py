"""What was spent, by day and key, and what is reserved: amounts in billionths of the prices' currency.

A reservation counts as spent in full from the moment it is made; settling it takes back what was not needed.
So whatever happens to a process, the amounts never say less than was spent, and what one that ended has left
open stays counted in full.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from headrace.routing.database import transaction

log = logging.getLogger("headrace.routing")


@dataclass(frozen=True)
class Reservation:
    """The most that one attempt at a request may cost."""

    request: str
    attempt: int
    key: str
    day: int
    """Days since 1970, UTC."""
    amount: int


@dataclass(frozen=True)
class Spent:
    """Of one day: by everyone, and by one key. What is reserved is in it."""

    all: int
    key: int


class Ledger:
    """The amounts of one database. Several processes may hold one each: their reservations add up."""

    def __init__(self, connection: sqlite3.Connection, writing: threading.Lock):
        """Reservations of processes that have ended are closed, at their full amount."""
        self._connection = connection
        self._writing = writing
        self._owner = _identity(os.getpid())
        self._forget_the_dead()

    def reserve(
        self, wanted: Reservation, day_limit: int | None = None, key_limit: int | None = None
    ) -> Spent | None:
        """Makes it, unless the day's or the key's sum would exceed its limit: then what is spent by now.

        Raises sqlite3.Error where the file cannot be written.
        """
        with self._writing, transaction(self._connection):
            spent = self._spent(wanted.day, wanted.key)
            if day_limit is not None and spent.all + wanted.amount > day_limit:
                return spent
            if key_limit is not None and spent.key + wanted.amount > key_limit:
                return spent
            self._connection.execute(
                "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?)",
                (wanted.request, wanted.attempt, wanted.key, wanted.day, wanted.amount, self._owner),
            )
            self._add(wanted, wanted.amount)
        return None

    def settle(self, made: Reservation, actual: int) -> None:
        """Ends a reservation: `actual` was spent. Raises sqlite3.Error where the file cannot be written."""
        with self._writing, transaction(self._connection):
            self._connection.execute(
                "DELETE FROM reservations WHERE owner = ? AND request = ? AND attempt = ?",
                (self._owner, made.request, made.attempt),
            )
            self._add(made, actual - made.amount)

    def spend(self, made: Reservation, actual: int) -> None:
        """So much was spent, for which nothing was written down before. Raises sqlite3.Error as `settle`."""
        with self._writing, transaction(self._connection):
            self._add(made, actual)

    def spent(self, day: int, key: str) -> Spent:
        """By everyone and by this key on this day. Raises sqlite3.Error where the file cannot be read."""
        with self._writing:
            return self._spent(day, key)

    def held(self, day: int, key: str) -> Spent:
        """What of it is set aside for requests that have not ended. Raises as `spent`."""
        with self._writing:
            ((all_of_it, of_key),) = self._connection.execute(
                "SELECT coalesce(sum(amount), 0), coalesce(sum(amount) FILTER (WHERE key = ?), 0) "
                "FROM reservations WHERE day = ?",
                (key, day),
            )
        return Spent(all_of_it, of_key)

    def _spent(self, day: int, key: str) -> Spent:
        read = self._connection.execute
        by_all = read("SELECT amount FROM day_spend WHERE day = ?", (day,)).fetchone()
        by_key = read("SELECT amount FROM key_spend WHERE day = ? AND key = ?", (day, key)).fetchone()
        return Spent(0 if by_all is None else by_all[0], 0 if by_key is None else by_key[0])

    def _add(self, reservation: Reservation, amount: int) -> None:
        added = " ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"
        self._connection.execute("INSERT INTO day_spend VALUES (?, ?)" + added, (reservation.day, amount))
        self._connection.execute(
            "INSERT INTO key_spend VALUES (?, ?, ?)" + added, (reservation.day, reservation.key, amount)
        )

    def _forget_the_dead(self) -> None:
        """A process that seems dead and is not, for it runs in another container, still settles rightly."""
        with self._writing, transaction(self._connection):
            owners = self._connection.execute(
                "SELECT owner, sum(amount), count(*) FROM reservations GROUP BY 1"
            )
            for owner, amount, count in owners.fetchall():
                if owner == _identity(int(owner.split("/")[0])):
                    continue
                self._connection.execute("DELETE FROM reservations WHERE owner = ?", (owner,))
                log.warning(
                    "a server that ended left %d answers open; up to %s are counted as spent",
                    count,
                    shown(amount),
                )


def shown(amount: int) -> str:
    """An amount in billionths as a user reads it: exact, with two digits after the point at least."""
    sign, (whole, rest) = "-" * (amount < 0), divmod(abs(amount), 10**9)
    return f"{sign}{whole}.{f'{rest:09}'.rstrip('0'):0<2}"


def plain(amount: float) -> str:
    """An amount as a user wrote it, without an exponent."""
    return f"{Decimal(f'{amount:.15g}'):f}"


def _identity(process: int) -> str:
    """Tells this process from any other that has its number later on; "" where there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The program's name, in brackets, may hold anything; the start time is the 20th word after it.
    state, started = (words := status.rpartition(")")[2].split())[0], words[19]
    return "" if state in "ZX" else f"{process}/{started}/{boot}"
