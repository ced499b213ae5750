"""`headrace bench`: one JSON object on standard output where asked, progress on standard error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from headrace.bench import accuracy, handoff, prefix, speculation, step_model, throughput
from headrace.bench.output import print_result
from headrace.bench.serve.cli import serve_command
from headrace.config import options
from headrace.option_types import WholeNumber
from headrace.worker.settings import WorkerSettings

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
@options("kv_dtype")
def accuracy_command(
    model: str, threads: int | None, as_json: bool, golden: Path, kv_dtype: Literal["f16", "int8"]
) -> None:
    """Compare log-probabilities and greedy choices with a float32 computation."""
    print_result(accuracy.run(model, golden, threads, kv_dtype), as_json)


@bench.command("throughput")
@_common
@click.option(
    "--batches", default=",".join(map(str, throughput.BATCHES)), show_default=True, help="Batch sizes."
)
@click.option("--depth", type=WholeNumber(min=1), help="Tokens to fill the cache with, for each sequence.")
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


@bench.command("handoff")
@click.option("--transport", type=click.Choice(list(handoff.TRANSPORTS)), default="shm", show_default=True)
@click.option(
    "--tokens", type=WholeNumber(min=1), default=2000, show_default=True, help="Length of the prefix."
)
@click.option(
    "--block-bytes",
    type=WholeNumber(min=1),
    default=handoff.BLOCK_BYTES,
    show_default=True,
    help="Of the cache, for 16 tokens.",
)
@click.option(
    "--repeats", type=WholeNumber(min=1), default=10, show_default=True, help="In each of 3 rounds."
)
@click.option("--namespaces", is_flag=True, help="Between two network namespaces, beside iperf3; needs root.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def handoff_command(
    transport: str, tokens: int, block_bytes: int, repeats: int, namespaces: bool, as_json: bool
) -> None:
    """Measure how fast one process hands cache blocks to another."""
    result = handoff.run(
        transport, tokens=tokens, block_bytes=block_bytes, repeats=repeats, namespaces=namespaces
    )
    print_result(result, as_json)


@bench.command("step-model")
@_common
@click.option(
    "--workers",
    type=WholeNumber(min=1),
    default=1,
    show_default=True,
    help="Of one host: how they slow each other down, too.",
)
def step_model_command(model: str, threads: int | None, workers: int, as_json: bool) -> None:
    """Measure how long steps take, for `headrace simulate`."""
    print_result(step_model.run(model, threads, workers), as_json)


@bench.command("speculation")
@_common
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help='Lines of JSON with the key "prompt", as HumanEval\'s file; may be gzip-compressed.',
)
@click.option("--limit", type=WholeNumber(min=1), help="Take only the first of them.")
@click.option(
    "--tokens", type=WholeNumber(min=2), default=256, show_default=True, help="Tokens after each prompt."
)
@options("speculate", "draft_model", "draft_tokens")
def speculation_command(
    model: str, as_json: bool, prompts: Path, limit: int | None, tokens: int, **settings: Any
) -> None:
    """Measure what speculation gains, and that it changes no token."""
    if settings["speculate"] == "none":
        settings["speculate"] = "prompt-lookup" if settings["draft_model"] is None else "draft"
    worker = WorkerSettings(model=model, max_running=1, **settings)
    print_result(speculation.run(worker, prompts, limit=limit, tokens=tokens), as_json)


def _sizes(text: str) -> list[int]:
    sizes = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")]
    if min(sizes) < 1:
        raise click.BadParameter(
            "expected whole numbers from 1 up, separated by commas", param_hint="--batches"
        )
    return sizes


bench.add_command(serve_command)
