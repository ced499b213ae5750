"""The command's options, and which of them go together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import click
import msgspec

from headrace.backends.cache import BLOCK_TOKENS
from headrace.bench.output import print_result
from headrace.bench.serve import plot as plotting
from headrace.bench.serve.metrics import Limits
from headrace.bench.serve.traces import TracedRequest, read_trace
from headrace.errors import ConfigError
from headrace.fleet.balance import Policy
from headrace.fleet.shape import FleetShape
from headrace.fleet.step_time import StepTime
from headrace.option_types import FiniteNumber, WholeNumber
from headrace.simulate.load import prepared, synthetic
from headrace.simulate.plot import draw
from headrace.simulate.report import report
from headrace.simulate.run import FleetModel, simulate

_COUNT = WholeNumber(min=1)
_AMOUNT = FiniteNumber(min=0, min_open=True)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("simulate")
@click.option("--step-model", type=_FILE, required=True, help="What `headrace bench step-model` measured.")
@click.option("--trace", type=_FILE, help="Arrivals and lengths of an Azure CSV or Mooncake JSONL.")
@click.option("--rate", type=_AMOUNT, help="Without a trace: Poisson arrivals, so many a second.")
@click.option("--requests", type=_COUNT, help="How many.  [default: 1000; all of a trace]")
@click.option("--input-len", type=_COUNT, default=1000, show_default=True, help="With --rate: mean tokens.")
@click.option("--output-len", type=_COUNT, default=200, show_default=True, help="With --rate: mean tokens.")
@click.option("--seed", type=WholeNumber(min=0), default=0, show_default=True, help="With --rate.")
@click.option("--replicas", type=_COUNT, help="Of both roles.  [default: 4, or none beside others]")
@click.option("--prefill", type=WholeNumber(min=0), default=0, help="Replicas that compute prompts.")
@click.option("--decode", type=WholeNumber(min=0), default=0, help="Replicas that answer.")
@click.option(
    "--token-bytes", type=_COUNT, default=100_000, show_default=True, help="Of its keys and values."
)
@click.option("--bandwidth", type=_AMOUNT, default=1.0, show_default=True, help="Of a handoff, in GB/s.")
@click.option(
    "--policy",
    type=click.Choice([policy.value for policy in Policy]),
    default=Policy.PREDICTED_TTFT.value,
    show_default=True,
    help="How a request's replica is chosen.",
)
@click.option("--cache-tokens", type=_COUNT, default=100_000, show_default=True, help="Of each replica.")
@click.option("--max-batch-tokens", type=_COUNT, default=256, show_default=True, help="Of a step.")
@click.option("--max-running", type=_COUNT, default=64, show_default=True, help="Requests of a replica.")
@click.option("--unit", type=_COUNT, default=1, show_default=True, help="Tokens to treat as one.")
@click.option("--rate-scale", type=_AMOUNT, default=1.0, show_default=True, help="Arrivals so much faster.")
@click.option("--saturation", is_flag=True, help="Find the rate that is as much as the fleet can do.")
@click.option("--slo-ttft", type=_AMOUNT, help="Goodput: most milliseconds to the first token.")
@click.option("--slo-tpot", type=_AMOUNT, help="Goodput: most milliseconds for each further token.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it: .svg or .png.")
def simulate_command(as_json: bool, saturation: bool, plot: Path | None, **given: Any) -> None:
    """Say how a fleet would serve a load, by the scheduler and balancer that serve.

    Nothing is computed: a step takes the time that was measured on a real
    machine. The answers are those of seconds, for hours of traffic.
    """
    if (given["trace"] is None) == (given["rate"] is None):
        raise click.UsageError("One of --trace and --rate says what the load is.")
    if plot is not None:
        plotting.check(plot)
    model, told = _fleet(given), {"policy": given["policy"], "unit": given["unit"]}
    if saturation:
        print_result(told | _saturation(given, model), as_json)
        return
    simulated = simulate(prepared(_load(given), given["rate_scale"], model.unit), model)
    if plot is not None:
        draw(simulated, f"{model.shape.count} replicas, {model.policy.value}", plot)
    limits = Limits(given["slo_ttft"], given["slo_tpot"])
    print_result(told | {"rate_scale": given["rate_scale"]} | report(simulated, limits), as_json)


def _saturation(given: dict[str, Any], model: FleetModel) -> dict[str, object]:
    """How fast the fleet answers requests that have all come, and how much faster that is than they come."""
    load = list(_load(given))
    at_once = simulate(prepared([replace(one, arrival=0.0) for one in load], 1.0, model.unit), model)
    seconds = max(one.last for one in at_once.served)
    return {
        "saturation_requests_per_s": round(len(load) / seconds, 4),
        "saturation_rate_scale": round(load[-1].arrival / seconds, 4),
    }


def _load(given: dict[str, Any]) -> Iterator[TracedRequest]:
    if given["trace"] is not None:
        return islice(read_trace(given["trace"]), given["requests"])
    return synthetic(
        given["rate"], given["requests"] or 1000, given["input_len"], given["output_len"], given["seed"]
    )


def _fleet(given: dict[str, Any]) -> FleetModel:
    """Raises ConfigError where the step model is none, or the roles make no fleet."""
    try:
        step_time = msgspec.json.decode(given["step_model"].read_bytes(), type=StepTime)
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigError(f"--step-model: {given['step_model']}: {error}") from error
    both = given["replicas"] or (0 if given["prefill"] or given["decode"] else 4)
    return FleetModel(
        step_time=step_time,
        shape=FleetShape(both, given["prefill"], given["decode"]),
        policy=Policy(given["policy"]),
        cache_blocks=max(1, given["cache_tokens"] // (BLOCK_TOKENS * given["unit"])),
        max_batch_tokens=given["max_batch_tokens"],
        max_running=given["max_running"],
        unit=given["unit"],
        transfer_seconds=given["token_bytes"] / (given["bandwidth"] * 1e9),
    )
