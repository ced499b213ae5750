"""What models have shown outlives the server, where it is about the same models on the same machine."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.routed.fleet import Fleet, eventually, here, routed
from headrace.gateway.routed import memory

QUICK = 0.001
WORDS = "A few words. " * 3


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that outlives those that ask it."""
    with routed(tmp_path_factory.mktemp("upstream"), {"distant": here(WORDS, 0.003)}) as server:
        yield server.url + "/v1"


@contextmanager
def fleet(folder: Path, upstream: str, step_seconds: float = QUICK, machine: str = "") -> Iterator[Fleet]:
    near = here(WORDS, step_seconds, cost_per_hour=3.6)
    far = {"url": upstream, "upstream": "distant", "input_price": 1.0, "output_price": 1.0}
    with routed(folder, {"near": near, "far": far}, machine=machine) as one:
        yield one


def shown(fleet: Fleet, model: str) -> dict[str, float]:
    """What the route foresees of a model."""
    (told,) = (each for each in fleet.explain(max_tokens=300)["candidates"] if each["model"] == model)
    return {name: told[name] for name in ("output_tokens", "cost", "first_token_ms", "tokens_per_second")}


def teach(fleet: Fleet) -> None:
    for _ in range(4):
        for model in ("near", "far"):
            assert fleet.chat(model, max_tokens=300).status_code == 200


def database(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "routing.sqlite", isolation_level=None)


def kept(folder: Path) -> dict[str, Any]:
    with closing(database(folder)) as reading:
        rows = reading.execute("SELECT name, value FROM learnt WHERE name LIKE '% of %'")
        return {name: json.loads(value) for name, value in rows}


def test_lengths_speeds_and_prices_are_known_after_a_restart(tmp_path: Path, upstream: str) -> None:
    with fleet(tmp_path, upstream, 0.01) as first:
        untaught = shown(first, "near"), shown(first, "far")
        teach(first)
        taught = shown(first, "near"), shown(first, "far")
    with fleet(tmp_path, upstream) as second:
        again = shown(second, "near"), shown(second, "far")
    for before, after, new in zip(taught, again, untaught, strict=True):
        assert after == pytest.approx(before, rel=0.02)
        assert after["output_tokens"] != pytest.approx(new["output_tokens"], rel=0.1)
        assert after["tokens_per_second"] != pytest.approx(new["tokens_per_second"], rel=0.1)
    assert again[0]["cost"] / again[0]["output_tokens"] != pytest.approx(
        untaught[0]["cost"] / untaught[0]["output_tokens"], rel=0.1
    )


def test_it_is_kept_while_the_server_runs_and_written_only_where_it_changed(
    tmp_path: Path, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_KEEP_SECONDS", 0.04)
    with fleet(tmp_path, upstream) as one:
        teach(one)
        eventually(lambda: kept(tmp_path)["speeds of far"]["known"]["first_token"])
        eventually(lambda: kept(tmp_path)["lengths of near"]["known"]["count"] > 4)
        time.sleep(0.7)  # until the last of it is written
        before = kept(tmp_path)
        time.sleep(0.7)
        assert kept(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "forgotten"),
    [
        (lambda known: known.update(time=time.time() - 31 * 86400), True),
        (lambda known: known.update(time=time.time() - 29 * 86400), False),
        (lambda known: known.update(about="another model"), True),
    ],
)
def test_what_is_stale_or_of_another_model_is_forgotten(
    tmp_path: Path, upstream: str, change: Callable[[dict[str, Any]], None], forgotten: bool
) -> None:
    with fleet(tmp_path, upstream) as first:
        teach(first)
        taught = shown(first, "near")["output_tokens"]
    rows = kept(tmp_path)
    with closing(database(tmp_path)) as writing:
        for name, known in rows.items():
            change(known)
            writing.execute("UPDATE learnt SET value = ? WHERE name = ?", (json.dumps(known), name))
    with fleet(tmp_path, upstream) as second:
        assert (shown(second, "near")["output_tokens"] != pytest.approx(taught)) == forgotten


def test_what_is_damaged_is_learnt_anew_and_told_in_the_log(
    tmp_path: Path, upstream: str, caplog: pytest.LogCaptureFixture
) -> None:
    with fleet(tmp_path, upstream) as first:
        teach(first)
        far_before = shown(first, "far")
    damaged = kept(tmp_path)["speeds of near"] | {"known": {"first_token": [[[1.0], -3, 0]]}}
    with closing(database(tmp_path)) as writing:
        for name, value in (
            ("lengths of near", '{"about": '),
            ("prices of near", "[]"),
            ("speeds of near", json.dumps(damaged)),
        ):
            writing.execute("UPDATE learnt SET value = ? WHERE name = ?", (value, name))
    with fleet(tmp_path, upstream) as second:
        assert shown(second, "far") == pytest.approx(far_before, rel=0.02)
        assert second.chat("near").status_code == 200
    assert "'lengths of near' is damaged" in caplog.text
    for name in ("prices of near", "speeds of near"):
        assert f"the {name} are damaged" in caplog.text


def test_speeds_say_nothing_of_another_machine_and_lengths_do(tmp_path: Path, upstream: str) -> None:
    with fleet(tmp_path, upstream, machine="small") as first:
        new = shown(first, "near")
        teach(first)
        taught = shown(first, "near")
    with fleet(tmp_path, upstream, machine="large") as second:
        again = shown(second, "near")
    assert again["output_tokens"] == pytest.approx(taught["output_tokens"])
    assert again["tokens_per_second"] == pytest.approx(new["tokens_per_second"])


def test_two_servers_may_keep_theirs_in_one_file(tmp_path: Path, upstream: str) -> None:
    with fleet(tmp_path, upstream) as first, fleet(tmp_path, upstream) as second:
        teach(first)
        teach(second)
    with fleet(tmp_path, upstream) as third:
        assert shown(third, "near")["output_tokens"] < 100
