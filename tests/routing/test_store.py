"""What a server's routing keeps on disk."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.routing import database
from headrace.routing.ledger import Reservation
from headrace.routing.store import Store
from routing.answers import NOON, decision, score


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(database.read_only(path)) as reading:
        return reading.execute(query).fetchall()


def test_what_was_decided_and_scored_is_there_at_once_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "data" / "routing.sqlite"
    made = decision(1, quality=None, first_token=None, hedged=True, status="cancelled")
    with Store(path) as store:
        store.decided(made)
        store.scored(score(1))
        store.scored(score(1, model="large", score=0.5))
        assert store.decision("answer-1") == made
        assert store.decision("answer-2") is None
    with Store(path) as store:
        assert store.decision("answer-1") == made
        assert store.scores(10) == [score(1), score(1, model="large", score=0.5)]
        assert store.scores(1) == [score(1, model="large", score=0.5)]


def test_what_was_learnt_is_remembered_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "routing.sqlite"
    with Store(path) as store:
        assert store.recall("watch auto") is None
        for spent in (1.5, 2.5):
            store.remember("watch auto", {"spent": spent, "records": [[0.5, None]]})
    with Store(path) as store:
        assert store.recall("watch auto") == {"spent": 2.5, "records": [[0.5, None]]}


def test_it_is_written_while_the_server_runs(tmp_path: Path) -> None:
    path = tmp_path / "routing.sqlite"
    with Store(path) as store:
        for number in range(500):
            store.decided(decision(number))
        until = time.monotonic() + 10
        while rows(path, "SELECT count(*) FROM decisions") != [(500,)]:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_a_second_score_of_one_source_takes_the_place_of_the_first(tmp_path: Path) -> None:
    with Store(tmp_path / "routing.sqlite") as store:
        for value in (0.0, 1.0):
            store.scored(score(source="feedback", score=value))
        store.scored(score(source="shadow", score=0.25))
        store.flush()
        assert [(each.source, each.score) for each in store.scores(10)] == [
            ("feedback", 1.0),
            ("shadow", 0.25),
        ]


@pytest.mark.parametrize("keeps", [True, False])
def test_prompts_are_kept_only_where_that_is_wanted(tmp_path: Path, keeps: bool) -> None:
    path = tmp_path / "routing.sqlite"
    with Store(path, keep_prompts=keeps) as store:
        store.keep_prompt("answer-1", "Why is the sky blue?", NOON)
    expected = [("answer-1", "Why is the sky blue?")] if keeps else []
    assert rows(path, "SELECT answer, prompt FROM prompts") == expected


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "routing.sqlite"
    with Store(path) as store:
        store.decided(decision())
        store.flush()
        assert {oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()} == {"0o600"}


def test_too_many_answers_are_forgotten_the_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "routing.sqlite"
    with Store(path, most_rows=100, keep_prompts=True) as store:
        for number in range(1000):
            store.decided(decision(number))
            store.scored(score(number))
            store.keep_prompt(f"answer-{number}", "What?", NOON + number)
    for table in ("decisions", "scores", "prompts"):
        (kept,) = rows(path, f"SELECT count(*), min(time), max(time) FROM {table}")
        assert kept == (100, NOON + 900, NOON + 999)


def test_old_answers_are_forgotten_but_not_what_was_spent(tmp_path: Path) -> None:
    path = tmp_path / "routing.sqlite"
    with Store(path, most_days=90) as store:
        store.ledger.reserve(Reservation("a", 0, "alice", 20_000, 5))
        for number in range(500):
            store.decided(decision(number))
        store.flush()
        for number in range(500, 520):
            store.decided(decision(number, time=NOON + 91 * 86400))
            store.flush()
    assert rows(path, "SELECT count(*), min(time) FROM decisions") == [(20, NOON + 91 * 86400)]
    assert rows(path, "SELECT * FROM key_spend") == [(20_000, "alice", 5)]


def test_what_cannot_be_written_now_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "routing.sqlite"
    with Store(path) as store:
        with closing(database.connect(path)) as other:
            other.execute("ALTER TABLE decisions RENAME TO away")
            store.decided(decision(1))
            store.flush()
            assert "cannot be written: no such table: decisions" in caplog.text
            assert store.decision("answer-1") == decision(1)
            other.execute("ALTER TABLE away RENAME TO decisions")
        store.flush()
        assert rows(path, "SELECT answer FROM decisions") == [("answer-1",)]


def test_what_a_killed_server_had_reserved_counts_as_spent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "routing.sqlite"
    code = (
        "import sys, os, signal, pathlib; from headrace.routing.store import Store;"
        "from headrace.routing.ledger import Reservation;"
        "store = Store(pathlib.Path(sys.argv[1]));"
        "store.ledger.reserve(Reservation('a', 0, 'alice', 20_000, 1_500_000_000));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    with Store(path) as store, Store(path):
        assert "a server that ended left 1 answers open; up to 1.50 are counted as spent" in caplog.text
        assert store.ledger.spent(20_000, "alice").key == 1_500_000_000
        store.ledger.reserve(Reservation("b", 0, "alice", 20_000, 5))
        with Store(path):
            assert rows(path, "SELECT request FROM reservations") == [("b",)]


def test_a_lock_that_is_not_let_go_of_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.5)
    path = tmp_path / "a.sqlite"
    with closing(database.connect(path)) as mine, closing(database.connect(path)) as other:

        def seconds(then: type[Exception] | None) -> float:
            began = time.monotonic()
            with nullcontext() if then is None else pytest.raises(then), database.transaction(mine):
                pass
            return time.monotonic() - began

        for _ in range(2):
            other.execute("BEGIN IMMEDIATE")
            assert seconds(sqlite3.OperationalError) > 0.4
            assert sum(seconds(sqlite3.OperationalError) for _ in range(5)) < 0.4
            other.execute("ROLLBACK")
            seconds(None)


def test_a_log_that_has_grown_long_is_moved_into_the_database(tmp_path: Path) -> None:
    path = tmp_path / "routing.sqlite"
    log = path.with_name("routing.sqlite-wal")
    with Store(path) as store:
        for number in range(3000):
            made = Reservation(str(number), 0, "alice", 20_000, 5)
            store.ledger.reserve(made)
            store.ledger.settle(made, 5)
            if number % 100 == 0:
                store.flush()
            assert log.stat().st_size < 8 * 2**20


def test_what_is_written_reaches_the_disk_and_an_idle_server_leaves_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "routing.sqlite"
    with Store(path) as store:
        before = path.stat().st_mtime_ns
        for number in range(20):
            store.ledger.reserve(Reservation(str(number), 0, "alice", 20_000, 5))
            store.flush()
        written = path.stat().st_mtime_ns
        assert written > before
        for _ in range(25):
            store.flush()
        assert path.stat().st_mtime_ns == written


@pytest.mark.parametrize("opening", [database.connect, database.read_only])
def test_other_files_are_refused(tmp_path: Path, opening: object) -> None:
    assert callable(opening)
    garbage, foreign, later = tmp_path / "garbage", tmp_path / "foreign", tmp_path / "later"
    garbage.write_bytes(b"no database" * 1000)
    for path, statement in ((foreign, "CREATE TABLE t (a)"), (later, "PRAGMA user_version = 2")):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
    with pytest.raises(ConfigError, match=r"garbage: .*not a database"):
        opening(garbage)
    with pytest.raises(ConfigError, match="foreign: is a database of something else"):
        opening(foreign)
    with pytest.raises(ConfigError, match="later: was written by a later Headrace"):
        opening(later)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"routing\.sqlite: cannot be used"):
        Store(tmp_path / "file" / "routing.sqlite")
    with pytest.raises(ConfigError, match="there is no such file; a server that routes writes it"):
        database.read_only(tmp_path / "absent")


def test_servers_may_make_the_file_at_the_same_time(tmp_path: Path) -> None:
    """Each makes a hundred files, so that they meet in every step of it."""
    code = f"""
import sys
from pathlib import Path
from headrace.routing.database import connect
print(flush=True)
sys.stdin.read()
for number in range(100):
    connect(Path({str(tmp_path)!r}, str(number))).close()
"""
    command = [sys.executable, "-c", code]
    servers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    for server in servers:
        assert server.stdout is not None and server.stdout.readline()
    for server in servers:
        assert server.stdin is not None
        server.stdin.close()
    for server in servers:
        assert server.stderr is not None
        assert server.stderr.read() == b"" and server.wait() == 0


def test_whoever_closes_the_file_first_leaves_the_log_to_those_who_still_write(tmp_path: Path) -> None:
    """Another server that ends, and a shell that only looks, in processes of their own."""
    path = tmp_path / "routing.sqlite"
    other = f"""
import sqlite3, sys
from pathlib import Path
from headrace.routing.store import Store
if sys.argv[1] == "server":
    Store(Path({str(path)!r})).close()
else:
    connection = sqlite3.connect({str(path)!r})
    connection.execute("SELECT count(*) FROM decisions").fetchone()
    connection.close()
"""
    with Store(path) as store:
        store.decided(decision(1))
        store.flush()
        for kind in ("server", "shell"):
            subprocess.run([sys.executable, "-c", other, kind], check=True)
            assert path.with_name("routing.sqlite-wal").exists()
        store.decided(decision(2))
        store.flush()
        assert rows(path, "SELECT count(*) FROM decisions") == [(2,)]


def test_what_is_damaged_of_what_was_learnt_counts_as_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "routing.sqlite"
    with Store(path) as store:
        for name in ("cut off", "no text"):
            store.remember(name, [1.5, None])
        store.flush()
        with closing(database.connect(path)) as other:
            other.execute("UPDATE learnt SET value = substr(value, 1, 3) WHERE name = 'cut off'")
            other.execute("UPDATE learnt SET value = x'ff00' WHERE name = 'no text'")
        assert store.recall("cut off") is store.recall("no text") is None
        assert "'cut off' is damaged" in caplog.text
