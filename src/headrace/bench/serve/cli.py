"""The command's options, and which of them go together."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from headrace.address import parse_url
from headrace.bench.output import print_result
from headrace.bench.serve import plot as plotting
from headrace.bench.serve.metrics import Limits
from headrace.bench.serve.own_server import own_server
from headrace.bench.serve.run import Settings, run
from headrace.bench.serve.target import find
from headrace.bench.serve.workloads import Workload
from headrace.config import options
from headrace.option_types import FiniteNumber, WholeNumber

_COUNT = WholeNumber(min=1)
_AMOUNT = FiniteNumber(min=0, min_open=True)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_REQUESTS = 64

_SHAPES: dict[str, dict[str, Any]] = {
    "workload": {
        "type": click.Choice(["random", "shared-prefix", "multi-turn"]),
        "help": "Prompts of their own, prompts behind a common prefix, or conversations.",
    },
    "input-len": {
        "type": _COUNT,
        "help": "Tokens of a prompt, or of what follows the prefix; words of a turn.",
    },
    "output-len": {"type": _COUNT, "help": "Tokens of an answer."},
    "prefix-len": {"type": _COUNT, "help": "Tokens of a shared prefix."},
    "groups": {"type": _COUNT, "help": "How many prefixes there are."},
    "turns": {"type": _COUNT, "help": "Requests of a conversation, each with the answers before it."},
    "vocab-size": {"type": WholeNumber(min=200), "help": "Token ids of prompts are below it."},
    "seed": {"type": WholeNumber(min=0), "help": "Same seed, same prompts and arrivals."},
}
"""Options of the workload; their defaults are Workload's."""


def _shape_options(command: Any) -> Any:
    for name, option in reversed(_SHAPES.items()):
        default = getattr(Workload(), "kind" if name == "workload" else name.replace("-", "_"))
        command = click.option(f"--{name}", default=default, show_default=True, **option)(command)
    return command


@click.command("serve", short_help="Put load on a server and measure what its clients see.")
@click.option("--url", envvar="HEADRACE_URL", help="A running OpenAI-compatible server.")
@options("model")
@click.option(
    "--api-key",
    envvar=["HEADRACE_API_KEY", "OPENAI_API_KEY"],
    help="Sent to the server as a bearer token.",
)
@click.option("--concurrency", type=_COUNT, help="Closed loop of so many clients.  [default: 16]")
@click.option("--rate", type=_AMOUNT, help="Open loop: Poisson arrivals, so many a second.")
@click.option(
    "--trace", type=_FILE, help="Open loop: arrivals and lengths of an Azure CSV or Mooncake JSONL."
)
@click.option("--speed", type=_AMOUNT, help="Play the trace so many times faster.  [default: 1]")
@click.option("--requests", type=_COUNT, help=f"How many.  [default: {_REQUESTS}; all of a trace]")
@_shape_options
@click.option("--slo-ttft", type=_AMOUNT, help="Goodput: most milliseconds to the first token.")
@click.option("--slo-tpot", type=_AMOUNT, help="Goodput: most milliseconds for each further token.")
@click.option("--timeout", type=_AMOUNT, default=600.0, show_default=True, help="Seconds for an answer.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the run: .svg or .png.")
@click.argument("serve_args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def serve_command(
    ctx: click.Context,
    /,
    url: str | None,
    model: str,
    api_key: str | None,
    serve_args: tuple[str, ...],
    as_json: bool,
    **load: Any,
) -> None:
    """Put load on an OpenAI-compatible server and measure what its clients see.

    Without --url a `headrace serve` is started on a free port, with the
    arguments after "--", and ended when all is measured. For random prompts
    and traces without shared blocks its prefix cache is off, unless told otherwise.
    """
    settings = _settings(ctx, load)
    if url is not None and serve_args:
        raise click.UsageError(f"{' '.join(serve_args)}: not for a server that runs already (--url).")
    if url is None:
        arguments = ["--model", model, *_cache(settings), *serve_args]
        server: AbstractContextManager[str] = own_server(arguments, ctx.find_root().params.get("config"))
        wanted = None
    else:
        server = nullcontext(url)
        wanted = model if ctx.get_parameter_source("model") is not ParameterSource.DEFAULT else None
    with server as address:
        result = run(find(parse_url(address, api_key), wanted), settings)
    print_result(result, as_json)


def _settings(ctx: click.Context, given: dict[str, Any]) -> Settings:
    """Raises UsageError for options that mean nothing together."""
    paces = [name for name in ("concurrency", "rate", "trace") if given[name] is not None]
    if len(paces) > 1:
        raise click.UsageError(f"--{' and --'.join(paces)} exclude each other.")
    trace = given["trace"]
    if trace is None and given["speed"] is not None:
        raise click.UsageError("--speed is the speed of a --trace.")
    names = {name: "kind" if name == "workload" else name.replace("-", "_") for name in _SHAPES}
    meaningless = [name for name in _SHAPES if name not in _meaningful(trace, given["workload"])]
    for name in meaningless:
        if ctx.get_parameter_source(name.replace("-", "_")) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} means nothing to {'a trace' if trace else given['workload']}.")
    if given["plot"] is not None:
        plotting.check(given["plot"])
    return Settings(
        workload=Workload(**{field: given[name.replace("-", "_")] for name, field in names.items()}),
        requests=given["requests"] or (None if trace else _REQUESTS),
        concurrency=given["concurrency"] or 16,
        rate=given["rate"],
        trace=trace,
        speed=given["speed"] or 1.0,
        timeout=given["timeout"],
        limits=Limits(given["slo_ttft"], given["slo_tpot"]),
        plot=given["plot"],
    )


def _meaningful(trace: Path | None, kind: str) -> set[str]:
    """Which of the workload's options do something."""
    if trace is not None:
        return {"vocab-size", "seed"}
    always = {"workload", "input-len", "output-len", "seed"}
    if kind == "multi-turn":
        return always | {"turns"}
    return always | {"vocab-size"} | ({"prefix-len", "groups"} if kind == "shared-prefix" else set())


def _cache(settings: Settings) -> list[str]:
    """The prefix cache is off where prompts share nothing: what it finds then would be chance."""
    if settings.trace is not None:
        shares = ".jsonl" in settings.trace.suffixes
    else:
        shares = settings.workload.kind != "random"
    return [] if shares else ["--no-prefix-cache"]
