"""Measures routing on a live fleet: `python -m live_fleet VERB FOLDER`, from this folder's parent.

    speed FOLDER      each model's speed, on a quiet machine; prices follow from it
    ask FOLDER        every model answers every question; goes on where it ended
    sample FOLDER     some questions several times, to see how much is chance
    records FOLDER    records.jsonl, for `headrace route train`
    report FOLDER     scores and policies; --json prints all of it

FOLDER keeps what was measured; `ask` takes the better part of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from live_fleet import answers, ask, speed
from live_fleet.chance import chance
from live_fleet.costs import Price
from live_fleet.picture import svg
from live_fleet.questions import Question, gsm8k, humaneval
from live_fleet.report import shown
from live_fleet.study import Study
from live_fleet.table import Table, table
from side_by_side.ours import HEADRACE
from side_by_side.process import free_port, serving

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
SAMPLED, SAMPLES = 50, 3


def main() -> None:
    arguments = parse_arguments()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    {"speed": measure, "ask": ask_all, "sample": sample, "records": records, "report": report}[
        arguments.verb
    ](folder, arguments.json)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="live_fleet"
    )
    parser.add_argument("verb", choices=("speed", "ask", "sample", "records", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="of report: print everything")
    return parser.parse_args()


def suites() -> dict[str, list[Question]]:
    return {"gsm8k": gsm8k(), "humaneval": humaneval()}


def measure(folder: Path, as_json: bool) -> None:
    speed.write(folder / "speeds.json", speed.measure(MODELS))
    print((folder / "speeds.json").read_text(), end="")


def ask_all(folder: Path, as_json: bool) -> None:
    for suite, questions in suites().items():
        for model in MODELS:
            ask_one(folder, suite, model, questions)


def sample(folder: Path, as_json: bool) -> None:
    """The first of the questions that are tested with."""
    for suite, questions in suites().items():
        for model in MODELS[1:]:
            ask_one(folder, suite, model, questions[:SAMPLED], SAMPLES)


def ask_one(folder: Path, suite: str, model: str, questions: list[Question], samples: int = 0) -> None:
    port = free_port()
    command = [*HEADRACE, "serve", "--model", model, "--port", str(port), "--data-dir", folder / "data"]
    with serving(command, f"live-{model}", port, 600.0) as url:
        ask.ask_all(url, model, questions, answers.path_of(folder, suite, model), samples)
    print(f"{suite}: {model} has answered", file=sys.stderr)


def records(folder: Path, as_json: bool) -> None:
    with (folder / "records.jsonl").open("w", encoding="utf-8") as file:
        for questions in suites().values():
            told = opened(folder, questions)
            for question, scores in zip(told.questions, told.scores.tolist(), strict=True):
                for model, score in zip(told.models, scores, strict=True):
                    line = {"prompt": question.prompt, "model": model, "score": score}
                    file.write(json.dumps(line) + "\n")


def report(folder: Path, as_json: bool) -> None:
    asked = suites()
    asked["both"] = [question for questions in asked.values() for question in questions]
    found = {}
    for suite, questions in asked.items():
        answered = opened(folder, questions)
        found[suite] = Study(answered).report()
        if suite != "both":
            found[suite] |= chance(folder, suite, answered, SAMPLES)
    (folder / "live_fleet.svg").write_text(svg(found), encoding="utf-8")
    print(json.dumps(found, indent=1) if as_json else shown(found))


def opened(folder: Path, questions: list[Question]) -> Table:
    """What was answered, at the prices that follow from the measured speeds."""
    speeds = speed.read(folder / "speeds.json")
    return table(folder, questions, {model: Price.at(speeds[model]) for model in MODELS})


if __name__ == "__main__":
    main()
