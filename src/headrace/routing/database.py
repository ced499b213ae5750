"""The SQLite file in which a server keeps what its routing spent and decided, and how answers were scored.

One file with write-ahead log: a commit survives the end of the process, however it comes, without waiting for
the disk; readers and the writer do not wait for each other. What does wait for the disk is left to
`checkpoint` and `begin_log_anew`, for a thread to call.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import ConfigError

VERSION = 1
"""Of the schema; `PRAGMA user_version` says which one a file has."""

LOG_BYTES = 4 * 2**20
"""A log that has grown longer is cut to this when it begins anew."""

FILE = "routing.sqlite"
"""In the folder of the server's data, unless another is named."""
LOCK_SECONDS = 2.0
"""A write waits at most so long for another server's; each takes well under a millisecond."""
IMPATIENT_SECONDS = 0.02
"""The same behind a write that has waited in vain."""

_SCHEMA = """
CREATE TABLE day_spend (
    day INTEGER PRIMARY KEY,            -- days since 1970, UTC
    amount INTEGER NOT NULL             -- billionths; what is reserved is counted in full
);
CREATE TABLE key_spend (
    day INTEGER NOT NULL,
    key TEXT NOT NULL,                  -- the name of an API key, never the key
    amount INTEGER NOT NULL,
    PRIMARY KEY (day, key)
) WITHOUT ROWID;
CREATE TABLE reservations (             -- those that are open
    request TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    key TEXT NOT NULL,
    day INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    owner TEXT NOT NULL,                -- the process
    PRIMARY KEY (owner, request, attempt)
) WITHOUT ROWID;
CREATE TABLE decisions (                -- one for each routed answer
    number INTEGER PRIMARY KEY,         -- grows with time
    answer TEXT NOT NULL UNIQUE,
    time REAL NOT NULL,                 -- seconds since 1970
    key TEXT NOT NULL,
    policy TEXT NOT NULL,
    model TEXT NOT NULL,
    tier TEXT NOT NULL,
    why TEXT NOT NULL,
    quality REAL,                       -- asked for, as a share of the best model's
    best TEXT NOT NULL,                 -- the best model
    chances TEXT NOT NULL,              -- JSON: model to chance of a good answer
    costs TEXT NOT NULL,                -- JSON: model to predicted cost, in billionths
    predicted_first_token REAL,         -- seconds
    first_token REAL,
    predicted_output_tokens REAL,
    output_tokens INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL,              -- billionths, of all attempts
    attempts INTEGER NOT NULL,
    cascaded INTEGER NOT NULL,
    hedged INTEGER NOT NULL,
    fell_back INTEGER NOT NULL,
    status TEXT NOT NULL
);
CREATE TABLE scores (
    number INTEGER PRIMARY KEY,
    answer TEXT NOT NULL,
    model TEXT NOT NULL,
    score REAL NOT NULL,
    source TEXT NOT NULL,               -- shadow, or feedback
    time REAL NOT NULL,
    chances TEXT NOT NULL,
    UNIQUE (answer, model, source)
);
CREATE TABLE prompts (
    number INTEGER PRIMARY KEY,
    answer TEXT NOT NULL UNIQUE,
    time REAL NOT NULL,
    prompt TEXT NOT NULL
);
CREATE TABLE learnt (                   -- what parts of the routing remember from one start to the next
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL                 -- JSON
) WITHOUT ROWID;
"""


class _Connection(sqlite3.Connection):
    """One that waits for another's lock, but hardly again while that is not let go of.

    Else every request would hold up the whole server for `LOCK_SECONDS`.
    """

    _patient = True

    def be_patient(self, patient: bool) -> None:
        """How long the next transaction waits."""
        if patient != self._patient:
            seconds = LOCK_SECONDS if patient else IMPATIENT_SECONDS
            self.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}")
            self._patient = patient


def connect(path: Path) -> sqlite3.Connection:
    """Opens a database for writing; makes it, its tables and its folder where they are absent, for its owner
    alone. For use by any thread, one at a time.

    Raises ConfigError where the file is no such database or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make(path)
        connection = sqlite3.connect(
            path,
            timeout=LOCK_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{path}: cannot be used as the routing's database: {error}") from None
    try:
        _checked_version(connection, path)
        _begin_logging(connection)
        # Commits reach the log, not yet the disk: enough for the end of a process.
        for setting in ("synchronous = NORMAL", "wal_autocheckpoint = 0"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        with transaction(connection):
            if _checked_version(connection, path) == 0:
                for statement in _SCHEMA.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")
    except sqlite3.Error as error:
        connection.close()
        raise ConfigError(f"{path}: cannot be used as the routing's database: {error}") from None
    except ConfigError:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """An empty file that is its owner's alone, where there is none.

    One that is there is left alone: closing it would let go of the locks that this process holds on it, and
    another that closes it would then think that nobody uses it any more, and take its log away.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _begin_logging(connection: sqlite3.Connection) -> None:
    """Writes go to a log from now on.

    Where another server begins it at this moment, SQLite does not wait for that one, and says that the
    database is locked. A transaction does wait.
    """
    setting = "PRAGMA journal_mode = WAL"
    try:
        connection.execute(setting)
    except sqlite3.OperationalError:
        with transaction(connection):
            pass
        connection.execute(setting)


def read_only(path: Path) -> sqlite3.Connection:
    """Opens a database to read it, perhaps while a server writes. Raises ConfigError where there is none."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file; a server that routes writes it")
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        if _checked_version(connection, path) == 0:
            raise ConfigError(f"{path}: is empty; a server that routes fills it")
    except sqlite3.Error as error:
        connection.close()
        raise ConfigError(f"{path}: cannot be read as the routing's database: {error}") from None
    except ConfigError:
        connection.close()
        raise
    return connection


def _checked_version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version: 0 for an empty file. Raises ConfigError for tables that are not this module's."""
    # Both at one moment: another server may just be making the tables.
    version, tables = connection.execute(
        "SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version"
    ).fetchone()
    if version > VERSION:
        raise ConfigError(f"{path}: was written by a later Headrace (version {version}); use that one")
    if version == 0 and tables:
        raise ConfigError(f"{path}: is a database of something else; name another file")
    return int(version)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. Holds off other writers, of other processes, too, from before the first read."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        if isinstance(connection, _Connection):
            connection.be_patient(False)
        raise
    if isinstance(connection, _Connection):
        connection.be_patient(True)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends it by itself where, say, the disk is full
            connection.execute("ROLLBACK")
        raise


def checkpoint(connection: sqlite3.Connection) -> None:
    """Moves what is committed from the log into the database; waits for the disk, while writers go on."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def begin_log_anew(connection: sqlite3.Connection) -> None:
    """Writes the first page of the log, after a checkpoint: that one write waits for the disk, too."""
    with transaction(connection):
        connection.execute(f"PRAGMA user_version = {VERSION}")


def log_bytes(path: Path) -> int:
    """How long the database's log is."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:
        return 0
