"""Budgets: what may still be spent, to the billionth, whoever spends it and however a server ends."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.errors import RequestError
from headrace.routing.budget import NANO, Budgets, OverBudget
from headrace.routing.database import connect
from headrace.routing.store import Store
from headrace.routing.tables import BudgetTable
from routing.spender import NOON, costs

DAY = int(NOON // 86400)
MIDNIGHT = (DAY + 1) * 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "routing.sqlite") as opened:
        yield opened


def test_a_request_that_could_exceed_the_day_s_budget_is_refused_until_the_next_day(store: Store) -> None:
    budgets = Budgets(BudgetTable(per_day=1.0), store)
    budgets.reserve("a", "alice", 700_000_000, NOON)
    budgets.settle("a", 700_000_000)
    with pytest.raises(OverBudget) as refused:
        budgets.reserve("b", "bob", 300_000_001, NOON)
    assert (refused.value.status, refused.value.code, refused.value.field) == (402, "budget_exceeded", None)
    assert refused.value.renews == MIDNIGHT
    assert str(refused.value) == (
        "The budget per_day of 1.00 has 0.30 left, and this request may cost 0.300000001. "
        "It renews at 2024-10-05 00:00 UTC."
    )
    budgets.reserve("b", "bob", 300_000_000, NOON)
    assert budgets.left("alice", NOON) == 0
    assert budgets.left("alice", MIDNIGHT) == NANO


def test_what_a_request_did_not_need_is_free_again(store: Store) -> None:
    budgets = Budgets(BudgetTable(per_day=1.0), store)
    budgets.reserve("a", "alice", NANO, NOON)
    budgets.settle("a", 250_000_000)
    budgets.reserve("b", "alice", 500_000_000, NOON)
    budgets.release("b")
    assert budgets.left("alice", NOON) == 750_000_000
    budgets.settle("b", 500_000_000)  # has ended before
    assert budgets.left("alice", NOON) == 750_000_000


def test_a_key_has_its_own_budget_or_that_of_all_keys(store: Store) -> None:
    budgets = Budgets(BudgetTable(per_key_day=1.0, keys={"alice": 2.0}), store)
    budgets.reserve("a", "alice", 2 * NANO, NOON)
    with pytest.raises(OverBudget, match=r"keys\.alice of 2\.00 has 0\.00 left"):
        budgets.reserve("b", "alice", 1, NOON)
    with pytest.raises(OverBudget, match=r"per_key_day of 1\.00 has 1\.00 left"):
        budgets.reserve("c", "bob", NANO + 1, NOON)
    budgets.reserve("d", "bob", NANO, NOON)


def test_all_attempts_at_a_request_share_its_budget(store: Store) -> None:
    budgets = Budgets(BudgetTable(per_request=1.0), store)
    budgets.reserve("a", "alice", 600_000_000, NOON)
    budgets.reserve("a", "alice", 400_000_000, NOON, attempt=1)
    with pytest.raises(OverBudget, match=r"per_request of 1\.00 has 0\.00 left.*cost 0\.000000001\.$"):
        budgets.reserve("a", "alice", 1, NOON, attempt=2)
    budgets.settle("a", 100_000_000)
    budgets.settle("a", 400_000_000, attempt=1)
    budgets.reserve("a", "alice", 500_000_000, NOON, attempt=2)
    budgets.reserve("b", "alice", NANO, NOON)
    assert budgets.left("alice", NOON) == NANO


def test_what_never_fits_into_the_budget_of_a_request_is_the_requests_own_mistake(store: Store) -> None:
    budgets = Budgets(BudgetTable(per_request=0.5, per_day=1.0), store)
    with pytest.raises(OverBudget, match=r"per_request of 0\.50 has 0\.50 left.*cost 0\.60\.$") as refused:
        budgets.reserve("a", "alice", 600_000_000, NOON)
    assert (refused.value.status, refused.value.code) == (400, "max_cost")
    short = budgets.shortage("alice", 600_000_000, NOON)
    assert short is not None and (short.budget, short.never, short.soon) == ("per_request", True, False)
    assert budgets.shortage("alice", 500_000_000, NOON) is None


def test_a_budget_that_open_requests_may_give_back_is_told_as_such(store: Store) -> None:
    budgets = Budgets(BudgetTable(per_day=1.0, per_key_day=0.9), store)
    budgets.reserve("spent", "alice", 200_000_000, NOON)
    budgets.settle("spent", 200_000_000)
    budgets.reserve("open", "alice", 600_000_000, NOON)
    with pytest.raises(OverBudget) as refused:
        budgets.reserve("b", "alice", 300_000_000, NOON)
    assert refused.value.soon and str(refused.value) == (
        "The budget per_key_day of 0.90 has 0.10 left (0.60 more is set aside for requests that have not "
        "ended), and this request may cost 0.30. It renews at 2024-10-05 00:00 UTC."
    )
    more_than_comes_back = budgets.shortage("alice", 750_000_000, NOON)
    assert more_than_comes_back is not None and not more_than_comes_back.soon
    assert more_than_comes_back.budget == "per_key_day"
    of_all = budgets.shortage("bob", 300_000_000, NOON)
    assert of_all is not None and (of_all.budget, of_all.left, of_all.soon) == ("per_day", 200_000_000, True)


def test_without_budgets_all_is_spent_and_written_down(store: Store) -> None:
    budgets = Budgets(BudgetTable(), store)
    budgets.reserve("a", "alice", 5000 * NANO, NOON)
    assert store.ledger.spent(DAY, "alice").all == 0, "nothing is set aside where nothing is bounded"
    budgets.settle("a", 4000 * NANO)
    assert budgets.left("alice", NOON) is None
    assert store.ledger.spent(DAY, "alice").all == 4000 * NANO


def test_an_answer_counts_to_the_day_on_which_it_began(store: Store) -> None:
    budgets = Budgets(BudgetTable(per_day=1.0), store)
    budgets.reserve("a", "alice", NANO, MIDNIGHT - 0.5)
    assert budgets.left("alice", MIDNIGHT) == NANO
    budgets.settle("a", 400_000_000)
    assert budgets.left("alice", MIDNIGHT - 1) == 600_000_000
    assert budgets.left("alice", MIDNIGHT) == NANO


def test_a_cost_above_what_was_set_aside_is_recorded_and_told(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    budgets = Budgets(BudgetTable(per_day=1.0), store)
    budgets.reserve("a", "alice", 900_000_000, NOON)
    budgets.settle("a", 1_100_000_000)
    assert "a cost 1.10, more than the 0.90" in caplog.text
    assert store.ledger.spent(DAY, "alice").key == 1_100_000_000
    assert budgets.left("alice", NOON) == 0


def test_two_servers_on_one_file_hold_the_budget_together(tmp_path: Path) -> None:
    path, table = tmp_path / "routing.sqlite", BudgetTable(per_day=1.0)
    with Store(path) as one, Store(path) as other:
        Budgets(table, one).reserve("a", "alice", 600_000_000, NOON)
        with pytest.raises(OverBudget):
            Budgets(table, other).reserve("a", "alice", 600_000_000, NOON)


def test_a_request_is_turned_away_only_by_a_budget_where_spend_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "routing.sqlite"
    with Store(path) as store, closing(connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DROP TABLE reservations")
        other.execute("COMMIT")
        with pytest.raises(RequestError) as refused:
            Budgets(BudgetTable(per_day=1.0), store).reserve("a", "alice", 1, NOON)
        assert (refused.value.status, refused.value.code) == (503, "budget_unavailable")
        Budgets(BudgetTable(), store).reserve("a", "alice", 1, NOON)


def test_budgets_hold_exactly_under_fifty_clients_a_killed_server_and_a_restart(tmp_path: Path) -> None:
    path, budget = tmp_path / "routing.sqlite", 6.0

    def server(name: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, str(Path(__file__).with_name("spender.py")), str(path), name, str(budget)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=(tmp_path / name).open("wb"))

    def settled(name: str) -> list[str]:
        return (tmp_path / name).read_text(encoding="utf-8").split()

    def begin(server: subprocess.Popen[bytes]) -> None:
        assert server.stdin is not None
        server.stdin.close()

    # The budget lasts for two seconds: in these no program is loaded.
    lives, dies, again = map(server, ("lives", "dies", "again"))
    while not all((tmp_path / name).stat().st_size for name in ("lives", "dies", "again")):
        time.sleep(0.01)
    begin(lives)
    begin(dies)
    with closing(connect(path)) as reading:
        # Who opens the file later, closes what the dead one left open.
        while not settled("lives") or len(settled("dies")) < 50:
            assert _spent(reading) <= budget * NANO
            assert dies.poll() is None
            time.sleep(0.01)
        dies.kill()
        dies.wait()
        left_open = dict(reading.execute("SELECT request, amount FROM reservations WHERE request LIKE 'd%'"))
        assert left_open
        assert all(amount == costs(request)[0] for request, amount in left_open.items())
        begin(again)
        assert (lives.wait(), again.wait()) == (0, 0)
        assert reading.execute("SELECT count(*) FROM reservations").fetchone() == (0,)
        done = [name for file in ("lives", "dies", "again") for name in settled(file)]
        expected = sum(costs(name)[1] for name in done if name not in left_open) + sum(left_open.values())
        (by_keys,) = reading.execute("SELECT sum(amount) FROM key_spend").fetchone()
        assert _spent(reading) == by_keys == expected
        assert 0 <= budget * NANO - expected < 2_000_000
        assert settled("again")


def _spent(reading: sqlite3.Connection) -> int:
    (spent,) = reading.execute("SELECT coalesce(sum(amount), 0) FROM day_spend").fetchone()
    return int(spent)
