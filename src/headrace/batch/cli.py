"""The command: from its options to a run, a progress bar and an exit status."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import click
import uvloop
from tqdm import tqdm  # type: ignore[import-untyped]

from headrace.address import parse_url
from headrace.batch.askers import own_worker, server
from headrace.batch.run import Ask, Run, Summary
from headrace.config import options
from headrace.engine_options import engine_settings
from headrace.models.local import local_file
from headrace.models.registry import resolve_to_run
from headrace.option_types import FiniteNumber, WholeNumber
from headrace.worker.settings import WorkerSettings

_ENGINE = (
    "threads",
    "context_length",
    "cache_gib",
    "cache_tokens",
    "kv_dtype",
    "max_batch_tokens",
    "max_running",
    "prefix_cache",
    "speculate",
    "draft_model",
    "draft_tokens",
)
_INTERRUPTED = 130


@click.command("batch", short_help="Answer a file of requests, without a server.")
@click.argument("requests", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("results", type=click.Path(dir_okay=False, path_type=Path))
@options("model")
@click.option("--url", envvar="HEADRACE_URL", help="Ask a running server instead of loading a model.")
@click.option(
    "--api-key",
    envvar=["HEADRACE_API_KEY", "OPENAI_API_KEY"],
    help="Sent to the server as a bearer token.",
)
@click.option(
    "--concurrency",
    type=WholeNumber(min=1, max=1024),
    help="Requests at a time.  [default: 2 x --max-running; 64 with --url]",
)
@click.option(
    "--timeout",
    type=FiniteNumber(min=0, min_open=True),
    default=3600.0,
    show_default=True,
    help="Seconds for an answer, with --url.",
)
@options(*_ENGINE)
def batch(
    requests: Path,
    results: Path,
    model: str,
    url: str | None,
    api_key: str | None,
    concurrency: int | None,
    timeout: float,
    **engine: Any,
) -> int:
    """Answer the file REQUESTS into the file RESULTS.

    Both are in the format of OpenAI's batches, a JSON object to a line.
    Results come in any order. What has its result already is not asked
    again: a run that was stopped goes on when the same command is run.

    The exit status is 1 where a request has failed.
    """
    run = Run(requests, results)
    asker: AbstractAsyncContextManager[Ask]
    if run.complete:
        click.echo(f"headrace: nothing to do: {run.summary.there:,} results are there already", err=True)
        return int(run.summary.failed_before > 0)
    if url is not None:
        window = concurrency or 64
        asker = server(parse_url(url, api_key), window, timeout)
    else:
        settings = WorkerSettings(**engine_settings(model=model, **engine))
        for name in filter(None, (settings.model, settings.draft_model)):
            resolve_to_run(name)
        window = concurrency or 2 * settings.max_running
        asker = own_worker(local_file(model), settings)
    finished = uvloop.run(_work(run, asker, window))
    click.echo(f"headrace: {run.summary.line()}", err=True)
    if not finished:
        click.echo("headrace: stopped; run the same command again to go on", err=True)
        return _INTERRUPTED
    return int(run.summary.failed + run.summary.failed_before > 0)


async def _work(run: Run, asker: AbstractAsyncContextManager[Ask], window: int) -> bool:
    """False where a signal ended the work."""
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(_ask_all(run, asker, window))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        return False
    return True


async def _ask_all(run: Run, asker: AbstractAsyncContextManager[Ask], window: int) -> None:
    summary = run.summary
    async with asker as ask:
        with tqdm(total=summary.total, initial=summary.there, unit=" requests", disable=None) as bar:

            def progress(now: Summary) -> None:
                bar.set_postfix_str(f"{now.output_tokens:,} tokens, {now.failed:,} failed", refresh=False)
                bar.update(now.there + now.answered + now.failed - bar.n)

            await run.work(ask, window, progress)
