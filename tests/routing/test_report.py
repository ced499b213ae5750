"""`headrace route report` and `export`: what routing was worth, from what a server has kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from headrace.routing.alone import Point, cost_of_mixing, mixtures
from headrace.routing.cli import route
from headrace.routing.ledger import Reservation
from headrace.routing.records import read_records
from headrace.routing.store import Store
from routing.answers import NOON, decision, score

CHEAP, DEAR = 1_000_000, 10_000_000


def called(*words: str) -> str:
    result = CliRunner().invoke(route, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "routing.sqlite"


def report(database: Path, *words: str) -> Any:
    return json.loads(called("report", "--database", str(database), "--json", *words))


def serve(database: Path, count: int = 1000) -> None:
    """Half of the prompts are easy; the small model answers those, and rightly, the large one the others.

    The large model is right about 90% of all. Every fifth prompt is scored in the shadow.
    """
    draw = np.random.default_rng(0)
    with Store(database, keep_prompts=True) as store:
        for number in range(count):
            easy = number % 2 == 0
            chances = {"small": 0.9 if easy else 0.3, "large": 0.9}
            model, cost = ("small", CHEAP) if easy else ("large", DEAR)
            made = decision(number, model=model, cost=cost, chances=chances, first_token=0.1)
            store.decided(made)
            store.keep_prompt(made.answer, f"question {number}", made.time)
            if draw.random() < 0.2:
                for name, chance in chances.items():
                    right = float(draw.random() < chance)
                    store.scored(score(number, model=name, score=right, chances=chances))


def test_a_report_says_what_was_saved_and_who_answered(database: Path) -> None:
    serve(database)
    made = report(database)
    assert made["answers"] == 1000
    assert made["savings"] == {
        "answers": 1000,
        "cost": pytest.approx(5.5),
        "best_cost": pytest.approx(10.0),
        "saved": pytest.approx(0.45),
    }
    small, large = made["models"]
    assert (small["name"], small["answers"], small["share"]) == ("small", 500, 0.5)
    assert (large["name"], large["cost"]) == ("large", pytest.approx(5.0))


def test_quality_is_told_for_each_model_alone_and_for_the_route(database: Path) -> None:
    serve(database)
    made = report(database)
    small, large = made["models"]
    assert small["alone"] == {"cost": 0.001, "quality": pytest.approx(0.6, abs=0.05)}
    assert large["alone"] == {"cost": 0.01, "quality": pytest.approx(0.9, abs=0.05)}
    assert made["route"] == {"cost": pytest.approx(0.0055), "quality": pytest.approx(0.9, abs=0.05)}
    assert made["mixing"] is None or made["mixing"] > 0.008
    assert small["scored"] == large["scored"] > 150


def test_the_quality_that_was_kept_has_an_interval(database: Path) -> None:
    serve(database)
    (kept,) = report(database)["kept"]
    assert (kept["asked"], kept["samples"]) == (0.9, pytest.approx(200, abs=40))
    assert 0.85 < kept["lowest"] < kept["realised"] < kept["highest"] < 1.15


def test_regret_is_against_the_best_choice_in_hindsight(database: Path) -> None:
    with Store(database) as store:
        for number, (small, large) in enumerate([(1.0, 1.0), (0.0, 1.0), (0.0, 0.0), (1.0, 0.0)]):
            store.decided(decision(number, model="large"))
            store.scored(score(number, score=small))
            store.scored(score(number, model="large", score=large))
    regret = report(database)["regret"]
    assert regret["requests"] == 4
    assert regret["quality"] == 0.25
    assert regret["cost"] == pytest.approx(0.75 * 0.009)
    assert regret["hindsight"] == {"cost": pytest.approx(0.00325), "quality": 0.75}


def test_predictions_and_chances_are_held_against_what_came(database: Path) -> None:
    with Store(database) as store:
        for number in range(100):
            late = 0.1 * (1.1 if number < 60 else 2.0)
            store.decided(decision(number, first_token=late, output_tokens=50))
            store.scored(score(number, score=float(number < 70)))
    made = report(database)
    assert made["first_token"]["within_25"] == 0.6
    assert made["first_token"]["ratio"] == pytest.approx(1.1)
    assert made["output_tokens"] == {"answers": 100, "ratio": 1.0, "error": 0.0, "within_25": 1.0}
    assert made["calibration"] == [{"answers": 100, "chance": 0.75, "score": 0.7}]


def test_users_scores_stand_beside_those_of_the_shadow(database: Path) -> None:
    with Store(database) as store:
        store.decided(decision())
        store.scored(score(source="feedback", score=0.25))
    made = report(database)
    assert [(model["feedback"], model["received"]) for model in made["models"]] == [(1, 0.25), (0, None)]
    assert made["calibration"] == []


def test_spend_is_told_by_day_and_key(database: Path) -> None:
    with Store(database) as store:
        for day, key, amount in ((20_000, "bob", 5), (20_000, "alice", 7), (20_001, "bob", 11)):
            store.ledger.reserve(Reservation(f"{day}{key}", 0, key, day, amount * 10**9))
    assert report(database)["spend"] == [
        {"day": "2024-10-04", "key": "alice", "amount": 7.0},
        {"day": "2024-10-04", "key": "bob", "amount": 5.0},
        {"day": "2024-10-05", "key": "bob", "amount": 11.0},
    ]


def test_answers_that_were_not_given_in_full_are_only_counted(database: Path) -> None:
    with Store(database) as store:
        store.decided(decision(1, hedged=True))
        store.decided(decision(2, status="cancelled", fell_back=True))
    made = report(database)
    assert (made["answers"], made["statuses"]) == (1, {"cancelled": 1})
    assert (made["cascaded"], made["hedged"], made["fell_back"]) == (0, 1, 1)


def test_the_text_and_the_page_show_the_figures(database: Path, tmp_path: Path) -> None:
    serve(database)
    html = tmp_path / "report.html"
    text = called("report", "--database", str(database), "--html", str(html))
    assert ["saved", "45.0%"] in [line.split() for line in text.splitlines()]
    for title in ("Models", "Quality as a share", "Predictions", "Estimated chances"):
        assert title in text
    page = ElementTree.fromstring(
        html.read_text(encoding="utf-8").replace("<!doctype html>", "").replace('<meta charset="utf-8">', "")
    )
    marks = [str(mark.text).split(": ") for mark in page.iter("title")][1:]
    assert [name for name, _ in marks] == ["small", "large", "the route", "best in hindsight (201 scored)"]
    assert marks[2][1].startswith("0.0055, 0.9")


def test_the_cost_is_that_of_all_answers_beside_that_of_those_compared(database: Path) -> None:
    with Store(database) as store:
        for number, best in enumerate(("large", "large", "refused")):
            costs = {"small": 10**9, "large": 4 * 10**9}
            store.decided(decision(number, model="small", cost=10**9, costs=costs, best=best))
    lines = [line.split() for line in called("report", "--database", str(database)).splitlines()]
    for line in ("answers 3", "cost of the answers 3", "compared with the best model 2", "cost of these 2"):
        assert line.split() in lines
    assert ["saved", "75.0%"] in lines


def test_only_the_last_days_are_looked_at_where_that_is_asked(database: Path) -> None:
    with Store(database) as store:
        store.decided(decision(time=NOON))
    assert "no answer has been routed in the last 7 days" in called(
        "report", "--database", str(database), "--days", "7"
    )


def test_an_empty_file_and_none_are_told_apart(database: Path, tmp_path: Path) -> None:
    Store(database).close()
    html = tmp_path / "report.html"
    assert called("report", "--database", str(database), "--html", str(html)) == "no answer has been routed\n"
    assert "No answers to draw." in html.read_text(encoding="utf-8")
    assert report(database)["models"] == []
    absent = CliRunner().invoke(route, ["report", "--database", str(tmp_path / "absent")])
    assert "there is no such file; a server that routes writes it" in str(absent.exception)


@pytest.mark.parametrize("verb", ["report", "export"])
def test_a_damaged_file_is_named(database: Path, tmp_path: Path, verb: str) -> None:
    serve(database)
    content = database.read_bytes()
    database.write_bytes(content[:8192] + bytes(len(content) - 8192))
    words = ["-o", str(tmp_path / "records.jsonl")] if verb == "export" else []
    damaged = CliRunner().invoke(route, [verb, "--database", str(database), *words])
    assert f"{database}: cannot be read: " in str(damaged.exception)


def test_it_looks_where_a_server_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    Store(tmp_path / "data" / "routing.sqlite").close()
    assert called("report") == "no answer has been routed\n"


def test_it_reads_while_a_server_writes(database: Path) -> None:
    with Store(database) as store:
        store.decided(decision())
        store.flush()
        assert report(database)["answers"] == 1


def test_names_cannot_break_the_page(database: Path, tmp_path: Path) -> None:
    name, html = "<b>&", tmp_path / "report.html"
    with Store(database) as store:
        store.decided(decision(model=name, chances={name: 0.5}, costs={name: 5}, status="ok"))
    called("report", "--database", str(database), "--html", str(html))
    assert "<b>" not in html.read_text(encoding="utf-8")


def test_what_was_kept_is_written_as_records_to_learn_from(database: Path, tmp_path: Path) -> None:
    serve(database, 100)
    with Store(database, keep_prompts=True) as store:
        store.scored(score(3, model="huge", source="feedback", score=0.5))
    output = tmp_path / "records.jsonl"
    words = ("export", "--database", str(database), "-o", str(output))
    assert "scores" in called(*words)
    records = read_records(output)
    assert set(records.models) == {"small", "large"}
    assert records.prompts[0].startswith("question ")
    called(*words, "--feedback")
    assert set(read_records(output).models) == {"small", "large", "huge"}


def test_nothing_to_export_is_said(database: Path, tmp_path: Path) -> None:
    Store(database).close()
    told = called("export", "--database", str(database), "-o", str(tmp_path / "records.jsonl"))
    assert "0 scores; are prompts kept, and answers scored?" in told


def test_random_choice_goes_along_the_upper_edge() -> None:
    points = [Point(1, 0.5), Point(2, 0.55), Point(3, 0.9), Point(4, 0.8), Point(5, 0.95)]
    assert mixtures(points) == [Point(1, 0.5), Point(3, 0.9), Point(5, 0.95)]
    assert cost_of_mixing(points, 0.7) == pytest.approx(2.0)
    assert cost_of_mixing(points, 0.4) == 1
    assert cost_of_mixing(points, 0.96) is None
    assert cost_of_mixing([], 0.5) is None
