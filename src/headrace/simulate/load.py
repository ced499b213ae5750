"""The requests of a simulation: of a trace, or made up; prompts share tokens where the trace says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from headrace.bench.serve.traces import BLOCK_TOKENS, TracedRequest
from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request; lengths are in tokens, whatever the unit."""

    arrival: float
    """Seconds since the simulation began."""
    input_len: int
    output_len: int
    prompt: tuple[int, ...]
    """In units, the last of them perhaps partly used."""
    outputs: int
    """In units."""


def synthetic(
    rate: float, requests: int, input_len: int, output_len: int, seed: int
) -> Iterator[TracedRequest]:
    """Poisson arrivals of so many a second; lengths exponentially distributed about their means."""
    random, now = Random(seed), 0.0
    for _ in range(requests):
        prompt, answer = (max(1, round(random.expovariate(1 / mean))) for mean in (input_len, output_len))
        yield TracedRequest(now, prompt, answer)
        now += random.expovariate(rate)


def prepared(trace: Iterable[TracedRequest], rate_scale: float, unit: int) -> Iterator[SimulatedRequest]:
    """The trace `rate_scale` times as fast, in units of so many tokens.

    Raises ConfigError where a block of the trace is no whole number of units.
    """
    if BLOCK_TOKENS % unit:
        raise ConfigError(f"--unit must divide the {BLOCK_TOKENS} tokens of a trace's block, not be {unit}")
    per_block, fresh = BLOCK_TOKENS // unit, 0
    for request in trace:
        units = -(-request.input_len // unit)
        if request.blocks:
            prompt = [block * per_block + i for block in request.blocks for i in range(per_block)][:units]
        else:
            prompt = list(range(fresh, fresh + units))
            fresh += units
        yield SimulatedRequest(
            request.arrival / rate_scale,
            request.input_len,
            request.output_len,
            tuple(prompt),
            -(-request.output_len // unit),
        )
