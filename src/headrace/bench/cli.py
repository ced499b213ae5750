"""`headrace bench`: one JSON object on standard output where asked, progress on standard error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.bench import accuracy, prefix, throughput
from headrace.bench.output import print_result
from headrace.bench.serve.cli import serve_command
from headrace.config import options

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """Measure a model on this machine."""


def _common(command: Command) -> Command:
    """What every bench takes."""
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)
    command = options("threads")(command)
    return click.argument("model")(command)


@bench.command("accuracy")
@_common
@click.option(
    "--golden",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="Golden values to compare with.",
)
def accuracy_command(model: str, threads: int | None, as_json: bool, golden: Path) -> None:
    """Compare log-probabilities and greedy choices with a float32 computation."""
    print_result(accuracy.run(model, golden, threads), as_json)


@bench.command("throughput")
@_common
@click.option(
    "--batches", default=",".join(map(str, throughput.BATCHES)), show_default=True, help="Batch sizes."
)
@click.option("--depth", type=click.IntRange(min=1), help="Tokens to fill the cache with, for each sequence.")
def throughput_command(
    model: str, threads: int | None, as_json: bool, batches: str, depth: int | None
) -> None:
    """Measure prefill and decode, the prefix cache off."""
    print_result(throughput.run(model, threads, _sizes(batches), depth), as_json)


@bench.command("prefix")
@_common
def prefix_command(model: str, threads: int | None, as_json: bool) -> None:
    """Measure what a shared prefix saves."""
    print_result(prefix.run(model, threads), as_json)


def _sizes(text: str) -> list[int]:
    sizes = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")]
    if min(sizes) < 1:
        raise click.BadParameter(
            "expected whole numbers from 1 up, separated by commas", param_hint="--batches"
        )
    return sizes


bench.add_command(serve_command)
