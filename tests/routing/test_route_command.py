"""`headrace route`, as it is called."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.routing import train
from headrace.routing.cli import route
from headrace.routing.records import Records
from routing.questions import questions


def table(path: Path, records: Records) -> str:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["prompt", *records.models])
        rows.writerows(
            [prompt, *scores] for prompt, scores in zip(records.prompts, records.scores.tolist(), strict=True)
        )
    return str(path)


def called(*words: str) -> str:
    result = CliRunner().invoke(route, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_router_is_trained_then_calibrated(tmp_path: Path) -> None:
    router = str(tmp_path / "router.npz")
    assert "small, large, the cheapest first, from 300 records" in called(
        "train", table(tmp_path / "a.csv", questions(300)), "-o", router
    )
    held_out = table(tmp_path / "b.csv", questions(1500, seed=1))
    made = json.loads(
        called("calibrate", router, held_out, "--quality", "0.9", "--quality", "0.95", "--json")
    )
    cheap, dear = made["promises"]
    assert (cheap["quality"], dear["quality"]) == (0.9, 0.95)
    assert 0 < cheap["share"] <= dear["share"] < 1
    assert "90% of large" in called("calibrate", router, held_out, "--quality", "0.9")


def test_an_evaluation_prints_what_is_recovered_and_how_sure_that_is(tmp_path: Path) -> None:
    data = table(tmp_path / "a.csv", questions(900))
    words = ("evaluate", data, "--models", "small,large", "--labels", "300", "--seeds", "2")
    result = json.loads(called(*words, "--json"))
    low, high = result["intervals_95"]["apgr"]
    assert 0.7 < low < result["apgr"] < high
    assert 0 < result["cpt_50"] < result["cpt_80"] < 0.6
    assert result["decision_ms_p99"] > 0
    assert len(result["seeds"]) == 2
    assert called(*words).startswith("apgr ")


def test_an_evaluation_takes_records_to_test_with(tmp_path: Path) -> None:
    data, other = table(tmp_path / "a.csv", questions(300)), table(tmp_path / "b.csv", questions(500, seed=1))
    words = ("evaluate", data, "--labels", "300", "--seeds", "1", "--test", other, "--json")
    assert json.loads(called(*words))["apgr"] > 0.7


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ("large,small", "is also the best"),
        ("small", "two models or more, not of small only"),
        ("small,huge", "no column 'huge'"),
    ],
)
def test_models_that_leave_nothing_to_measure_are_refused(tmp_path: Path, models: str, told: str) -> None:
    data = table(tmp_path / "a.csv", questions(300))
    result = CliRunner().invoke(
        route, ["evaluate", data, "--models", models, "--labels", "100", "--seeds", "1"]
    )
    assert told in str(result.exception)


def test_an_evaluation_of_preferences_needs_both_models_beside_one_another(tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    pairs = [f"question {number},{'large,small' if number % 3 else 'small,large'}" for number in range(120)]
    data.write_text("\n".join(["prompt,winner,loser", *pairs]))
    words = ("evaluate", str(data), "--models", "small,large", "--labels", "60", "--seeds", "1", "--json")
    assert json.loads(called(*words))["cpt_50"] > 0
    halves = ("large,middling", "middling,small")
    lines = [f"question {number},{halves[number % 2]}" for number in range(120)]
    data.write_text("\n".join(["prompt,winner,loser", *lines]))
    result = CliRunner().invoke(route, [*words[:3], "small,middling,large", *words[4:]])
    assert "no prompt to test with has scores of both small and large" in str(result.exception)


def test_it_is_told_how_many_records_were_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "MOST", 60)
    data = table(tmp_path / "a.csv", questions(100))
    assert "from 60 of 100 records" in called("train", data, "-o", str(tmp_path / "router.npz"))


def test_a_router_of_one_model_is_not_learnt(tmp_path: Path) -> None:
    data = tmp_path / "a.csv"
    data.write_text("prompt,a,b\nx,1,\n")
    result = CliRunner().invoke(route, ["train", str(data), "-o", str(tmp_path / "router.npz")])
    assert "two models or more, not of a only" in str(result.exception)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    data, nowhere = table(tmp_path / "a.csv", questions(60)), str(tmp_path / "no" / "router.npz")
    result = CliRunner().invoke(route, ["train", data, "-o", nowhere])
    assert f"{nowhere}: cannot be written: No such file" in str(result.exception)


def test_a_promise_is_of_less_than_all(tmp_path: Path) -> None:
    router = tmp_path / "router.npz"
    router.touch()
    result = CliRunner().invoke(route, ["calibrate", str(router), str(router), "--quality", "1"])
    assert "expected a number above 0 and below 1, not '1'" in result.output
