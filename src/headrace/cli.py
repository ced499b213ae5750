"""The command line: one verb, one function. What a verb needs is imported only when it runs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import click

from headrace import __version__
from headrace.config import ConfigFile, explain, options, unknown_variables
from headrace.engine_options import ENGINE, SPECULATION, engine_settings
from headrace.errors import HeadraceError

_ELSEWHERE = {
    "serve": (
        "headrace.serve_cli",
        "serve",
        "Serve models over HTTP: the first one at once, others when they are asked for.",
    ),
    "worker": (
        "headrace.serve_cli",
        "worker",
        "Run a worker for a server on another host, which was started with --listen-workers.",
    ),
    "batch": ("headrace.batch.cli", "batch", "Answer a file of requests, by itself or by a server."),
    "bench": ("headrace.bench.cli", "bench", "Measure a model on this machine."),
    "prefix": ("headrace.prefix", "prefix", "See what prompts share in a running server's cache; pin it."),
    "doctor": ("headrace.doctor", "doctor", "Say what this machine can do and what is missing."),
    "fleet": ("headrace.fleet_cli", "fleet", "See and change the workers of a running server."),
    "simulate": ("headrace.simulate.cli", "simulate_command", "Say how a fleet would serve a load."),
    "ps": ("headrace.ps", "ps", "List the models that a running server has loaded."),
    "route": ("headrace.routing.cli", "route", "Learn which model will do for a prompt."),
}
"""Verbs that are kept beside what they do: module, function, and the line in the list of verbs."""

_BENCHES = ("accuracy", "throughput", "prefix", "speculation", "serve", "step-model")


class _Verbs(click.Group):
    """A group that imports the verbs of _ELSEWHERE only when they run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """--config may stand behind the verb, too."""
        return super().parse_args(ctx, _config_first(args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *_ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _ELSEWHERE:
            return click.Command(cmd_name, help=_ELSEWHERE[cmd_name][2])
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in _ELSEWHERE:
            module, function, _ = _ELSEWHERE[name]
            command = getattr(import_module(module), function)
        return name, command, rest


def _config_first(args: Sequence[str]) -> list[str]:
    first, rest, left = list[str](), list[str](), iter(args)
    for arg in left:
        if arg == "--":
            rest += [arg, *left]
        elif arg == "--config":
            if not (value := [*islice(left, 1)]):
                return [arg]  # click says what is missing
            first += [arg, *value]
        else:
            (first if arg.startswith("--config=") else rest).append(arg)
    return first + rest


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="headrace %(version)s")
@click.option(
    "--config",
    envvar="HEADRACE_CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of settings. [default: ./headrace.toml, if there is one]",
)
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """Serve open language models, with an OpenAI-compatible API.

    Every setting can also stand in the environment (--port as HEADRACE_PORT)
    or in headrace.toml (port = 8000).
    """
    if (warning := unknown_variables(os.environ)) is not None:
        _tell(warning)
    file = ctx.obj = ConfigFile.read(config)
    settings = file.settings()
    ctx.default_map = dict.fromkeys([*cli.list_commands(ctx)], settings) | {
        "bench": dict.fromkeys(_BENCHES, settings)
    }
    if ctx.invoked_subcommand == "route" and (database := _database(file, settings)) is not None:
        ctx.default_map["route"] = {verb: {"database": database} for verb in ("report", "export")}


def _database(file: ConfigFile, settings: dict[str, str]) -> str | None:
    """Where the server of these settings keeps what became of its routes; None: at its usual place."""
    from headrace.routing.database import FILE

    named = file.fleet().routing.database
    data_dir = os.environ.get("HEADRACE_DATA_DIR") or settings.get("data_dir")
    if named is not None or data_dir is None:
        return named
    return str(Path(data_dir) / FILE)


@cli.command()
@options("model")
@click.option("--url", envvar="HEADRACE_URL", help="Talk to a running server instead of loading a model.")
@click.option("--api-key", envvar="HEADRACE_API_KEY", help="Sent to the server as a bearer token.")
@click.option("--system", help="What the model is told before the conversation.")
@options("max_tokens", "temperature", "top_p", "seed", *ENGINE, *SPECULATION)
@click.pass_context
def chat(
    ctx: click.Context,
    /,
    model: str,
    url: str | None,
    api_key: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    **engine: Any,
) -> None:
    """Talk with a model in the terminal. Ctrl-C stops an answer, Ctrl-D leaves."""
    from headrace.chat import LocalModel, RemoteModel, converse

    answering = _answering(max_tokens, temperature, top_p, seed)
    if url is not None:
        given = ctx.get_parameter_source("model") is not click.core.ParameterSource.DEFAULT
        converse(RemoteModel(url, model if given else None, answering, api_key), system)
        return
    from headrace.llm import LLM

    with LLM(**engine_settings(model=model, **engine)) as llm:
        converse(LocalModel(llm, model, answering), system)


@cli.command()
@click.argument("prompt")
@options("model", "max_tokens", "temperature", "top_p", "seed", *ENGINE, *SPECULATION)
def generate(
    prompt: str,
    max_tokens: int,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    **engine: Any,
) -> None:
    """Continue PROMPT, or the text on standard input where PROMPT is "-"."""
    from headrace.llm import LLM

    text = sys.stdin.read() if prompt == "-" else prompt
    with LLM(**engine_settings(**engine)) as llm:
        for piece in llm.stream(text, **_answering(max_tokens, temperature, top_p, seed)):
            click.echo(piece, nl=False)
    click.echo()


@cli.command()
@click.argument("name")
def pull(name: str) -> None:
    """Fetch the model NAME, or check that it is there and intact."""
    from headrace.models.registry import resolve

    click.echo(resolve(name, verify=True).path)


@cli.command("list")
def list_models() -> None:
    """List the models that are on this machine."""
    from headrace.models.local import local_files

    for file in local_files():
        size = f"{file.size / 10**6:,.0f} MB"
        click.echo(f"{file.name:<32} {size:>10}" + ("" if file.supported else "  cannot be run yet"))


@cli.command()
@click.argument("name")
def rm(name: str) -> None:
    """Remove the model NAME from this machine."""
    from headrace.models.local import remove_local

    click.echo(f"removed {remove_local(name).path}")


@cli.group()
def key() -> None:
    """Make keys for `headrace serve --api-keys`."""


@key.command("new")
@click.argument("name")
def new_key(name: str) -> None:
    """Make a key: the table for the keys file on standard output, the key itself on standard error.

    So `headrace key new alice >> keys.toml` adds it. The key is shown once; only its hash is kept.
    """
    from headrace.gateway import keys

    keys.check_name(name)
    made, stored = keys.new_key()
    _tell(f"the key of {name}, shown this once: {made}")
    quoted = name if name.replace("-", "_").isidentifier() else f'"{name}"'
    click.echo(f'[keys.{quoted}]\nhash = "{stored}"')


def _answering(
    max_tokens: int, temperature: float | None, top_p: float | None, seed: int | None
) -> dict[str, Any]:
    """What is asked of the model: nothing that the user left to it."""
    chosen = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    return {name: value for name, value in chosen.items() if value is not None}


def _tell(line: str) -> None:
    click.echo(f"headrace: {line}", err=True)


def main() -> None:
    """The `headrace` command. An error a user can cure is one line on standard error, and exit status 1."""
    logging.basicConfig(level=logging.WARNING, format="headrace: %(message)s")
    try:
        status = cli.main(prog_name="headrace", standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        told = explain(error) if isinstance(error, click.BadParameter) else None
        if told is None:
            error.show()
            sys.exit(error.exit_code)
        _tell(str(told))
        sys.exit(1)
    except HeadraceError as error:
        _tell(str(error))
        sys.exit(1)
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        _tell("the system gives no more threads: end other programs, or raise the limit (ulimit -u)")
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
