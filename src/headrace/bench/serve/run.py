"""One measurement from its settings to its figures: load, measures, and what the client itself cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import uvloop

from headrace.bench.serve import plot
from headrace.bench.serve.client import Client
from headrace.bench.serve.load import closed_loop, open_loop
from headrace.bench.serve.metrics import Limits, duration, spread, summarize
from headrace.bench.serve.record import Record
from headrace.bench.serve.target import Target
from headrace.bench.serve.traces import TracedRequest, read_trace
from headrace.bench.serve.workloads import Session, Workload, fitting, poisson
from headrace.errors import HeadraceError

_TOLD_PARTS = 10
"""How often progress is told."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What load, and what is asked of its answers. Closed loop where there is neither rate nor trace."""

    workload: Workload
    requests: int | None
    """How many; None is all of the trace."""
    concurrency: int = 16
    rate: float | None = None
    """Sessions that arrive in a second."""
    trace: Path | None = None
    speed: float = 1.0
    """How many times faster than it was recorded the trace is played."""
    timeout: float = 600.0
    limits: Limits = field(default_factory=Limits)
    plot: Path | None = None


def run(target: Target, settings: Settings) -> dict[str, object]:
    """Puts the load on and gives every measure. Raises HeadraceError where nothing was answered."""
    left_out: list[TracedRequest] = []
    progress = _Progress(settings.requests)
    uvloop.run(_first(target, settings))
    cpu = time.process_time()
    records = uvloop.run(_load(target, settings, left_out, progress))
    cpu = time.process_time() - cpu
    progress.tell_failures()
    if all(record.failure is not None for record in records):
        raise HeadraceError(f"none of {len(records)} requests was answered")
    summary = summarize(records, settings.limits)
    load = _describe(settings) | ({"left_out": len(left_out)} if settings.trace else {})
    if settings.plot is not None:
        plot.draw(records, f"{target.model}: {', '.join(f'{k} {v}' for k, v in load.items())}", settings.plot)
    return {"model": target.model, "load": load} | summary | {"client": _own_cost(records, cpu)}


async def _first(target: Target, settings: Settings) -> None:
    """One short request of the kind, so that a server that cannot answer it is told of before the load."""
    other = settings.workload.seed + 2**32
    short = replace(settings.workload, input_len=8, output_len=4, prefix_len=1, seed=other)
    ask = next(next(short.sessions(1)).asks)
    client, record = Client(target, settings.timeout), Record(ask.max_tokens, started=time.perf_counter())
    await client.send(target.request(ask), record)
    client.close()
    if record.failure is not None:
        raise HeadraceError(f"the server does not answer: {record.failure}, {record.message}")


async def _load(
    target: Target, settings: Settings, left_out: list[TracedRequest], progress: _Progress
) -> list[Record]:
    client = Client(target, settings.timeout)
    try:
        arrivals = _arrivals(settings, target.context, left_out)
        if arrivals is not None:
            return await open_loop(client, arrivals, settings.speed, progress.note)
        assert settings.requests is not None
        sessions = settings.workload.sessions(settings.requests)
        return await closed_loop(client, sessions, settings.concurrency, progress.note)
    finally:
        client.close()


def _arrivals(
    settings: Settings, context: int | None, left_out: list[TracedRequest]
) -> Iterator[tuple[float, Session]] | None:
    """Sessions by their time, None for a closed loop."""
    if settings.trace is not None:
        trace = fitting(read_trace(settings.trace), context, settings.requests, left_out)
        return settings.workload.traced(trace)
    if settings.rate is not None:
        assert settings.requests is not None
        times = poisson(settings.rate, settings.workload.seed)
        return zip(times, settings.workload.sessions(settings.requests), strict=False)
    return None


class _Progress:
    """Tells on standard error how far the run is, and why requests failed."""

    def __init__(self, requests: int | None) -> None:
        self._requests = requests
        self._step = max(1, (requests or 1000) // _TOLD_PARTS)
        self._ended = 0
        self._messages: dict[str, str] = {}
        self._began = time.perf_counter()

    def note(self, record: Record) -> None:
        """A request has ended."""
        self._ended += 1
        if record.failure is not None:
            self._messages.setdefault(record.failure, record.message)
        if self._ended % self._step == 0:
            of = f" of {self._requests}" if self._requests else ""
            _tell(f"{self._ended}{of} requests, {time.perf_counter() - self._began:.1f} s")

    def tell_failures(self) -> None:
        """The first message of each kind."""
        for kind, message in self._messages.items():
            _tell(f"failed, {kind}: {message}")


def _describe(settings: Settings) -> dict[str, object]:
    """The load, so that a result says what it is a result of."""
    work = settings.workload
    if settings.trace is not None:
        return {"trace": settings.trace.name, "speed": settings.speed, "seed": work.seed}
    described = {"workload": work.kind, "input_len": work.input_len, "output_len": work.output_len}
    names = {"random": (), "shared-prefix": ("prefix_len", "groups"), "multi-turn": ("turns",)}[work.kind]
    described |= {name: value for name, value in asdict(work).items() if name in names}
    pace = {"concurrency": settings.concurrency} if settings.rate is None else {"rate": settings.rate}
    return {**described, **pace, "requests": settings.requests, "seed": work.seed}


def _own_cost(records: Sequence[Record], cpu_seconds: float) -> dict[str, object]:
    """What the client took, the making of prompts included, and how late it was in sending."""
    pieces = sum(len(record.chunk_times) for record in records)
    late = [record.sent - record.started for record in records if record.sent]
    return {
        "cpu_s": round(cpu_seconds, 3),
        "cores": round(cpu_seconds / duration(records), 4),
        "cpu_us_per_piece": round(cpu_seconds / max(1, pieces) * 1e6, 1),
        "late_ms_p99": spread(np.array(late))["p99"],
    }


def _tell(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)
