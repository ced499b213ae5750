"""What a server's routing keeps: spend, decisions, scores of answers, and prompts where that is wanted.

Spend is written at once (`Ledger`); all else is queued, and written by a thread in small transactions, so
that neither the caller nor another server waits long. What is old is forgotten in small bites.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from headrace.routing.database import (
    LOG_BYTES,
    begin_log_anew,
    checkpoint,
    connect,
    log_bytes,
    transaction,
)
from headrace.routing.ledger import Ledger

log = logging.getLogger("headrace.routing")

FLUSH_SECONDS = 0.5
_FLUSHES_TO_DISK = 20
"""After so many, a power failure loses nothing of what was written before."""
_ROWS_AT_ONCE = 64
_MOST_QUEUED = 100_000
_SECONDS_A_DAY = 86400.0
_BOUNDED = ("decisions", "scores", "prompts")


@dataclass(frozen=True)
class Decision:
    """One routed answer: what was predicted, and what came of it. Costs are in billionths.

    `chances` and `costs` hold what was predicted for each candidate: the chance that its answer is good, and
    what it would cost. `best` names the best model, whose quality `quality` is a share of. Times in seconds;
    None where nothing was predicted or came. `status` is "ok" for an answer that was given in full.
    """

    answer: str
    time: float
    """Since 1970."""
    key: str
    policy: str
    model: str
    tier: str
    why: str
    quality: float | None
    best: str
    chances: Mapping[str, float]
    costs: Mapping[str, int]
    predicted_first_token: float | None
    first_token: float | None
    predicted_output_tokens: float | None
    output_tokens: int
    input_tokens: int
    cost: int
    """Of all attempts."""
    attempts: int = 1
    cascaded: bool = False
    """A cheaper model's answer was not accepted."""
    hedged: bool = False
    fell_back: bool = False
    status: str = "ok"


@dataclass(frozen=True)
class Score:
    """How good a model's answer to one prompt was, in [0, 1], and the chances estimated for that prompt."""

    answer: str
    """Of the routed answer to that prompt; another model's, given in the shadow, bears the same."""
    model: str
    score: float
    source: str
    """Either "shadow" or "feedback"."""
    time: float
    chances: Mapping[str, float]


class Store:
    """One server's hold on the database; several servers may use one file.

    `decided`, `scored` and `keep_prompt` cost microseconds. A second score of one source for an answer and a
    model takes the place of the first.
    """

    def __init__(
        self, path: Path, *, keep_prompts: bool = False, most_rows: int = 1_000_000, most_days: float = 90
    ):
        """Decisions, scores and prompts are kept for `most_days`, and `most_rows` of each.

        Raises ConfigError where the file is no such database or cannot be written.
        """
        self.path = path
        self.keeps_prompts = keep_prompts
        self._most_rows = most_rows
        self._most_seconds = most_days * _SECONDS_A_DAY
        self._writing = threading.Lock()
        self._connections = contextlib.ExitStack()
        self._at_once = self._connections.enter_context(contextlib.closing(connect(path)))
        self._later = self._connections.enter_context(contextlib.closing(connect(path)))
        self.ledger = Ledger(self._at_once, self._writing)
        self._queue: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._unwritten: dict[str, Decision] = {}
        self._failing = False
        self._flushes = 0
        self._on_disk = 0
        self._ending = threading.Event()
        self._flushing = threading.Lock()
        self._thread = threading.Thread(target=self._write_on, name="routing-store", daemon=True)
        self._thread.start()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Writes what is queued, and lets go of the file."""
        self._ending.set()
        self._thread.join()
        self.flush()
        self._connections.close()

    def decided(self, decision: Decision) -> None:
        """Keeps what became of a request."""
        if self._put("INSERT OR REPLACE INTO decisions", _decision_row(decision)):
            self._unwritten[decision.answer] = decision

    def scored(self, score: Score) -> None:
        """Keeps how good an answer was."""
        row = dict(vars(score), chances=json.dumps(dict(score.chances)))
        self._put("INSERT OR REPLACE INTO scores", (None, *row.values()))

    def keep_prompt(self, answer: str, prompt: str, time: float) -> None:
        """Keeps a prompt to learn from, where the store keeps prompts; `time` is in seconds since 1970."""
        if self.keeps_prompts:
            self._put("INSERT OR REPLACE INTO prompts", (None, answer, time, prompt))

    def decision(self, answer: str) -> Decision | None:
        """What became of a request; None where it is not known (any more)."""
        if (queued := self._unwritten.get(answer)) is not None:
            return queued
        with self._writing:
            row = self._at_once.execute("SELECT * FROM decisions WHERE answer = ?", (answer,)).fetchone()
        return None if row is None else decision_of(row)

    def scores(self, most: int) -> list[Score]:
        """The last scores that were written, the oldest first."""
        with self._writing:
            rows = self._at_once.execute("SELECT * FROM scores ORDER BY number DESC LIMIT ?", (most,))
            read = [score_of(row) for row in rows]
        return read[::-1]

    def remember(self, name: str, value: object) -> None:
        """Keeps what a part of the routing has learnt, as JSON; it takes the place of what had that name."""
        self._put("INSERT OR REPLACE INTO learnt", (name, msgspec.json.encode(value).decode()))

    def recall(self, name: str) -> Any:
        """What was remembered by that name before the last flush; None where nothing was or it is damaged."""
        try:
            with self._writing:
                row = self._at_once.execute("SELECT value FROM learnt WHERE name = ?", (name,)).fetchone()
            return None if row is None else json.loads(row[0])
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            log.warning("%s: what was kept as %r is damaged, and is left aside: %s", self.path, name, error)
            return None

    def flush(self) -> None:
        """Writes what is queued; where that fails, it stays queued for the next time."""
        with self._flushing:
            try:
                while self._queue:
                    self._write_some()
                self._bring_to_disk()
            except (sqlite3.Error, OSError) as error:
                if not self._failing:
                    log.error("%s cannot be written: %s; what is decided waits in memory", self.path, error)
                self._failing = True
            else:
                self._failing = False

    def _put(self, into: str, row: Sequence[Any]) -> bool:
        if len(self._queue) >= _MOST_QUEUED:
            return False
        self._queue.append((f"{into} VALUES ({', '.join('?' * len(row))})", tuple(row)))
        return True

    def _write_on(self) -> None:
        while not self._ending.wait(FLUSH_SECONDS):
            self.flush()

    def _bring_to_disk(self) -> None:
        """Every few seconds, or when the log is long; where nothing was written, there is nothing to do."""
        changes = self._at_once.total_changes + self._later.total_changes
        if changes == self._on_disk:
            return
        self._flushes += 1
        if self._flushes >= _FLUSHES_TO_DISK or log_bytes(self.path) > LOG_BYTES:
            checkpoint(self._later)
            with self._writing:
                begin_log_anew(self._later)
            self._flushes, self._on_disk = 0, changes

    def _write_some(self) -> None:
        rows = [self._queue[place] for place in range(min(_ROWS_AT_ONCE, len(self._queue)))]
        with self._writing, transaction(self._later):
            for statement, row in rows:
                self._later.execute(statement, row)
            for table in _BOUNDED:
                self._forget_some(table)
        for statement, row in rows:
            self._queue.popleft()
            if "decisions" in statement:
                self._unwritten.pop(row[1], None)

    def _forget_some(self, table: str) -> None:
        """Up to twice as many of the oldest rows as are written at once, where they are too old or many."""
        self._later.execute(
            f"DELETE FROM {table} WHERE number IN (SELECT number"
            f" FROM (SELECT number, time FROM {table} ORDER BY number LIMIT ?)"
            f" WHERE number <= (SELECT max(number) FROM {table}) - ?"
            f" OR time < (SELECT time FROM {table} ORDER BY number DESC LIMIT 1) - ?)",
            (2 * _ROWS_AT_ONCE, self._most_rows, self._most_seconds),
        )


def _decision_row(decision: Decision) -> tuple[Any, ...]:
    row = dict(vars(decision))
    for name in ("chances", "costs"):
        row[name] = json.dumps(dict(row[name]))
    return (None, *row.values())


def decision_of(row: Sequence[Any]) -> Decision:
    """A row of the table `decisions`."""
    values = dict(zip(Decision.__dataclass_fields__, row[1:], strict=True))
    for name in ("chances", "costs"):
        values[name] = json.loads(values[name])
    for name in ("cascaded", "hedged", "fell_back"):
        values[name] = bool(values[name])
    return Decision(**values)


def score_of(row: Sequence[Any]) -> Score:
    """A row of the table `scores`."""
    values = dict(zip(Score.__dataclass_fields__, row[1:], strict=True))
    return Score(**dict(values, chances=json.loads(values["chances"])))
