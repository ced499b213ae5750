"""`headrace fleet`: the workers of a running server: what they do, a plan, restart, roles and draining."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from headrace.config import url_option
from headrace.errors import ConfigError, RequestError
from headrace.option_types import FiniteNumber
from headrace.prefix import Server

Command = TypeVar("Command", bound=Callable[..., Any])

_LOOK_SECONDS = 0.5
_MILLISECONDS = FiniteNumber(min=0, min_open=True)


@click.group()
def fleet() -> None:
    """See and change the workers of a running server."""


def _common(command: Command) -> Command:
    """What every command takes."""
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)
    command = click.option(
        "--api-key", envvar="HEADRACE_API_KEY", help="Sent to the server as a bearer token."
    )(command)
    return url_option(command)


@fleet.command()
@_common
def status(url: str, api_key: str | None, as_json: bool) -> None:
    """List the workers."""
    answer = Server(url, api_key).ask("GET", "/v1/fleet")
    _tell(answer, as_json, _status(answer))


@fleet.command("plan")
@_common
@click.option("--ttft-limit-ms", type=_MILLISECONDS, help="To the first token. [default: the server's]")
@click.option("--tpot-limit-ms", type=_MILLISECONDS, help="For each further one. [default: the server's]")
def plan_command(url: str, api_key: str | None, as_json: bool, **limits: float | None) -> None:
    """Say how many workers, in which roles, keep the limits at the least cost.

    By what was asked in the last minutes and how fast the workers were; 95% of
    the requests are to keep the limits.
    """
    query = "&".join(f"{name}={value:g}" for name, value in limits.items() if value is not None)
    answer = Server(url, api_key).ask("GET", "/v1/fleet" + ("?" + query if query else ""))
    if not any(model.get("plan") for model in answer["data"]):
        no_limits = not query and all(model.get("traffic") for model in answer["data"])
        raise ConfigError(
            "give --ttft-limit-ms, --tpot-limit-ms or both"
            if no_limits
            else "there has been too little traffic to plan by"
        )
    _tell(answer, as_json, _plans(answer))


@fleet.command()
@_common
@click.option("--model", help="Whose workers, where the server has loaded several.")
@click.option("--reload", is_flag=True, help="The model's file is another one now.")
def restart(url: str, api_key: str | None, as_json: bool, model: str | None, reload: bool) -> None:
    """Replace every worker by a new one, one after another; no request fails."""
    server = Server(url, api_key)
    progress = server.ask("POST", "/v1/fleet/restart", {"model": model, "reload": reload})
    while progress["running"]:
        time.sleep(_LOOK_SECONDS)
        fleets = server.ask("GET", "/v1/fleet")["data"]
        told = [one["restart"] for one in fleets if one["restart"] and model in (None, one["model"])]
        progress = next((one for one in told if one["running"]), told[-1])
    if progress["error"]:
        raise RequestError(progress["error"])
    _tell(progress, as_json, [f"{progress['done']} of {progress['total']} workers are replaced"])


@fleet.command()
@click.argument("name")
@click.argument("role", type=click.Choice(["both", "prefill", "decode"]))
@_common
@click.option("--model", help="Whose worker, where the server has loaded several.")
def role(url: str, api_key: str | None, as_json: bool, name: str, role: str, model: str | None) -> None:
    """Use the worker NAME for ROLE from now on."""
    answer = Server(url, api_key).ask("POST", f"/v1/fleet/workers/{name}", {"role": role, "model": model})
    _tell(answer, as_json, [f"{name} is for {role}"])


@fleet.command()
@click.argument("name")
@_common
@click.option("--model", help="Whose worker, where the server has loaded several.")
def drain(url: str, api_key: str | None, as_json: bool, name: str, model: str | None) -> None:
    """Take the worker NAME out of service; what it computes goes on."""
    answer = Server(url, api_key).ask("POST", f"/v1/fleet/workers/{name}", {"drain": True, "model": model})
    _tell(answer, as_json, [f"{name} has ended"])


def _tell(answer: dict[str, Any], as_json: bool, lines: Iterator[str] | list[str]) -> None:
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
        return
    for line in lines:
        click.echo(line)


def _status(answer: dict[str, Any]) -> Iterator[str]:
    yield f"{'MODEL':<24} {'WORKER':<16} {'ROLE':<8} {'STATE':<11} {'PID':>8} {'LOAD':>5} {'ROWS/S':>8}"
    for model in answer["data"]:
        for one in model["workers"]:
            speed = f"{1e3 / one['row_ms']:,.0f}" if one["row_ms"] else "-"
            yield (
                f"{model['model']:<24} {one['name']:<16} {one['role']:<8} {one['state']:<11} "
                f"{one['pid'] or '-':>8} {one['load']:>5} {speed:>8}"
            )


def _plans(answer: dict[str, Any]) -> Iterator[str]:
    for model in answer["data"]:
        if (plan := model["plan"]) is None:
            yield f"{model['model']}: too little traffic to plan by"
            continue
        what = f"{plan['both']} workers"
        if plan["prefill"]:
            what = f"{plan['prefill']} workers for prompts and {plan['decode']} for answers"
        yield (
            f"{model['model']}: {what}; TTFT {plan['ttft_ms']:,.0f} ms and TPOT {plan['tpot_ms']:,.1f} ms "
            "are expected for 95% of the requests"
        )
        yield from (f"  {reason}" for reason in plan["reasons"])
