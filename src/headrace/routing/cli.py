"""`headrace route`: learn from records which model will do, measure that, and set promises."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from headrace.errors import ConfigError
from headrace.models.registry import home
from headrace.option_types import FiniteNumber, WholeNumber
from headrace.routing import artefact
from headrace.routing.answers import learn_confidences, read_answers
from headrace.routing.database import FILE, read_only
from headrace.routing.evaluate import evaluate as evaluate_trials
from headrace.routing.evaluate import trials
from headrace.routing.picture import page
from headrace.routing.promises import keep
from headrace.routing.records import Records, read_records
from headrace.routing.report import kept_records, measure
from headrace.routing.report_text import tables
from headrace.routing.router import Router
from headrace.routing.train import train as learn

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUTPUT = click.Path(dir_okay=False, path_type=Path)
_COUNT = WholeNumber(min=1)
_SHARE = FiniteNumber(min=0, max=1, min_open=True, max_open=True)
_MODELS = click.option("--models", help="Columns or names, the cheapest first: a,b.  [default: as in DATA]")
_PROMISED = (0.9, 0.95, 0.99)
_DATABASE = click.option(
    "--database",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What a server keeps of its routing.  [default: data/routing.sqlite in HEADRACE_HOME]",
)


@click.group()
def route() -> None:
    """Learn from records of answers which model will do for a prompt.

    DATA is a CSV file or lines of JSON, perhaps compressed (.gz): a column
    `prompt` and one for each model with its scores between 0 and 1; or
    `prompt`, `model` and `score`; or `prompt`, `winner` and `loser`.
    """


@route.command()
@click.argument("data", type=_FILE)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file."
)
@_MODELS
@click.option("--seed", type=WholeNumber(min=0), default=0, show_default=True, help="Of what is drawn.")
def train(data: Path, output: Path, models: str | None, seed: int) -> None:
    """Learn a router from DATA, and write it to a file."""
    records = _comparable(data, models)
    click.echo(f"learning from {len(records)} records of {', '.join(records.models)}", err=True)
    estimator = learn(records, seed)
    artefact.save(Router(estimator), output)
    count = len(estimator.seen)
    of = f" of {len(records)}" if count < len(records) else ""
    click.echo(f"{output}: {', '.join(records.models)}, the cheapest first, from {count}{of} records")


@route.command()
@click.argument("router", type=_FILE)
@click.argument("data", type=_FILE)
@click.option(
    "--quality",
    type=_SHARE,
    multiple=True,
    default=(0.95,),
    show_default=True,
    help="Share of the best model's.",
)
@click.option("--delta", type=_SHARE, default=0.05, show_default=True, help="Chance of a wrong promise.")
@click.option(
    "--horizon", type=_COUNT, default=1000, show_default=True, help="Requests over which it is kept, too."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(
    router: Path, data: Path, quality: tuple[float, ...], delta: float, horizon: int, as_json: bool
) -> None:
    """Set how much quality ROUTER promises, on records it was not learnt from.

    The file is written anew, with one promise for each --quality.
    """
    read = artefact.load(router)
    calibrated = read.calibrated(read_records(data, read.models), quality, delta, horizon)
    artefact.save(calibrated, router)
    made = [asdict(promise) for promise in calibrated.promises if promise.quality in quality]
    if as_json:
        click.echo(json.dumps({"promises": made}))
        return
    for promise in made:
        click.echo(
            f"{promise['quality']:.0%} of {promise['best']}: it answers {promise['share']:.1%} "
            f"of {promise['records']} prompts"
        )


@route.command()
@click.argument("answers", type=_FILE)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file."
)
@click.option("--models", required=True, help="In the order in which a cascade asks them: a,b,c.")
def confidence(answers: Path, output: Path, models: str) -> None:
    """Learn from ANSWERS how sure a cascade can be of an answer, and write it to a file.

    ANSWERS is lines of JSON, perhaps compressed (.gz): `prompt`, `model`,
    `score` between 0 and 1, `tokens` and their `logprobs`, `finish_reason`.
    """
    names = _names(models) or []
    if len(names) < 2:
        raise ConfigError("--models: a cascade has two models or more")
    learnt = learn_confidences(read_answers(answers), names)
    with _written(output) as file:
        file.write(msgspec.json.encode(learnt).decode())
    for name, each in learnt.items():
        click.echo(f"{output}: {name}, from {each.answers} answers")


@route.command()
@click.argument("data", type=_FILE)
@_MODELS
@click.option("--labels", type=_COUNT, default=1500, show_default=True, help="Records to learn from.")
@click.option("--seeds", type=_COUNT, default=5, show_default=True, help="Divisions of the records.")
@click.option("--test", type=_FILE, help="Records to test with.  [default: the rest of DATA]")
@click.option("--draws", type=_COUNT, help="Also see so many times whether promises are kept.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    data: Path,
    models: str | None,
    labels: int,
    seeds: int,
    test: Path | None,
    draws: int | None,
    as_json: bool,
) -> None:
    """Measure a router that is learnt from DATA: APGR, CPT and the time of a decision.

    APGR is how much of the gap between the first model and the best one is
    recovered, on average over all shares of calls of the best one; CPT the
    share of such calls that recovers 50% and 80%, as RouteLLM defines them.
    """
    records = _comparable(data, models)
    other = None if test is None else read_records(test, records.models)
    made = trials(records, labels, seeds, other, lambda line: click.echo(line, err=True))
    measured = evaluate_trials(made, time.perf_counter)
    result: dict[str, Any] = {
        **asdict(measured.mean),
        "decision_ms_p99": measured.decision_ms_p99,
        "intervals_95": {
            name: [low, asdict(measured.high)[name]] for name, low in asdict(measured.low).items()
        },
        "seeds": [asdict(each) for each in measured.seeds],
    }
    if draws is not None:
        kept = [keep(made, quality, draws) for quality in _PROMISED]
        result["promises"] = [asdict(each) | {"ratio": each.ratio} for each in kept]
    if as_json:
        click.echo(json.dumps(result))
    else:
        _print(result)


@route.command()
@_DATABASE
@click.option("--days", type=_COUNT, help="Only the last so many days.  [default: all that is kept]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--html", type=_OUTPUT, help="Also write a page with a picture of cost against quality.")
def report(database: Path | None, days: int | None, as_json: bool, html: Path | None) -> None:
    """Say what routing was worth, from what a server has kept, while it runs, too.

    What other models would have cost is as predicted. Quality is known for
    the answers that were scored in the shadow.
    """
    with _reading(database) as connection:
        measured = measure(connection, 0.0 if days is None else time.time() - days * 86400)
    if html is not None:
        with _written(html) as file:
            file.write(page(measured))
    if as_json:
        click.echo(json.dumps(asdict(measured)))
    elif not measured.answers and not measured.statuses:
        click.echo("no answer has been routed" + ("" if days is None else f" in the last {days} days"))
    else:
        click.echo("\n\n".join(table.text() for table in tables(measured)))


@route.command()
@_DATABASE
@click.option("-o", "--output", type=_OUTPUT, required=True, help="The file, lines of JSON (.jsonl).")
@click.option("--feedback", is_flag=True, help="Also users' scores, not only those of the shadow.")
def export(database: Path | None, output: Path, feedback: bool) -> None:
    """Write scored prompts as records for `train` and `calibrate`.

    A server keeps prompts only with keep-prompts in [routing].
    """
    count = 0
    with _reading(database) as connection, _written(output) as file:
        for record in kept_records(connection, feedback=feedback):
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    click.echo(f"{output}: {count} scores" + ("" if count else "; are prompts kept, and answers scored?"))


def _comparable(data: Path, models: str | None) -> Records:
    """The records of DATA. Raises ConfigError where they are of one model only."""
    records = read_records(data, _names(models))
    if len(records.models) < 2:
        raise ConfigError(
            f"{data}: a router needs scores of two models or more, not of {records.models[0]} only"
        )
    return records


@contextmanager
def _written(path: Path) -> Iterator[IO[str]]:
    """The file, to be written. Raises ConfigError where it cannot be."""
    try:
        with path.open("w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def _reading(named: Path | None) -> Iterator[sqlite3.Connection]:
    """A server's database. Raises ConfigError where it cannot be read, or not to its end."""
    path = home() / "data" / FILE if named is None else named
    with closing(read_only(path)) as connection:
        try:
            yield connection
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None


def _print(result: dict[str, Any]) -> None:
    for name, (low, high) in result["intervals_95"].items():
        click.echo(f"{name:<16} {result[name]:.4f}  ({low:.4f} to {high:.4f})")
    click.echo(f"{'decision_ms_p99':<16} {result['decision_ms_p99']:.3f}")
    for kept in result.get("promises", []):
        click.echo(
            f"quality {kept['quality']:.2f}: short in {kept['fell_short']:.1%} of {kept['draws']} draws, "
            f"best model called for {kept['share']:.1%}, {kept['ratio']:.2f} times the best fixed slack's"
        )


def _names(models: str | None) -> list[str] | None:
    return None if models is None else [name.strip() for name in models.split(",") if name.strip()]
