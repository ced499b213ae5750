"""What workers would make of a load: their steps one after another, but no caches, blocks or messages.

A few hundred requests take some ten milliseconds, so a planner can try many fleets. `headrace simulate`
drives the real scheduler and balancer instead, and says the same within what the rounding of steps hides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from headrace.fleet.balance import Ask, Balancer
from headrace.fleet.dispatch import LEAST_HANDOFF
from headrace.fleet.modelled_worker import Job, ModelledWorker, Times, WorkerModel
from headrace.fleet.traffic import Arrival

PERCENTILE = 0.95
"""Of TTFT and TPOT: the part of all requests that may take so long at the most."""


class Pools(NamedTuple):
    """Workers by role."""

    both: int = 0
    prefill: int = 0
    decode: int = 0

    @property
    def workers(self) -> int:
        return self.both + self.prefill + self.decode


class Forecast(NamedTuple):
    """What a load would meet; seconds."""

    ttft: float
    """At PERCENTILE."""
    tpot: float
    """At PERCENTILE, over requests of more than one token."""
    busy: float
    """The part of the time that the busiest pool computes, on average."""


class _Pool:
    """Workers alike, among which the balancer that serves chooses."""

    def __init__(self, model: WorkerModel, workers: int):
        self.times = Times()
        self._balancer = Balancer()
        self._workers = {str(number): ModelledWorker(model, self.times) for number in range(workers)}
        for name in self._workers:
            self._balancer.add(name, model.step_time, model.budget)

    def run(self, jobs: Sequence[Job]) -> float:
        """All jobs, in order of their coming, to their end; the part of the time that it computed."""
        for job in jobs:
            for worker in self._workers.values():
                worker.run(job.ready)
            self.times.tell(self._balancer)
            ask = Ask(job.left)
            chosen = self._balancer.choose(ask, self._workers, job.ready)
            self._balancer.dispatched(str(job.index), ask, chosen, job.ready)
            self._workers[chosen.replica].add(job)
        for worker in self._workers.values():
            worker.run(math.inf)
        end = max((worker.now for worker in self._workers.values()), default=0.0)
        busy = sum(worker.busy for worker in self._workers.values())
        return busy / max(end * len(self._workers), 1e-9)


def plain(load: Sequence[Arrival], model: WorkerModel, workers: int) -> Forecast:
    """Workers that do both."""
    pool = _Pool(model, workers)
    busy = pool.run([_job(index, arrival, stays=True) for index, arrival in enumerate(load)])
    return _measured(load, pool.times.first, pool.times.last, busy)


class Prefilled(NamedTuple):
    """What a prefill pool leaves to a decode pool."""

    jobs: list[Job]
    busy: float


def prefilled(load: Sequence[Arrival], model: WorkerModel, workers: int) -> Prefilled:
    """Workers that compute the prompts that are worth handing over; the others are left as they are."""
    jobs: list[Job] = []
    given: list[Job] = []
    for index, arrival in enumerate(load):
        job = _job(index, arrival, stays=False)
        (given if job.left >= LEAST_HANDOFF else jobs).append(job)
    pool = _Pool(model, workers)
    busy = pool.run(given)
    for job in given:
        at, arrival = pool.times.first[job.index], load[job.index]
        # The last token of a prompt is computed by who answers.
        prompt = arrival.lengths.prompt
        jobs.append(Job(job.index, at, prompt - 1, 1, True, arrival.lengths.output))
    for job in jobs:
        job.stays = True
    return Prefilled(sorted(jobs, key=lambda job: job.ready), busy)


def decoded(load: Sequence[Arrival], given: Prefilled, model: WorkerModel, workers: int) -> Forecast:
    """Workers that answer what a prefill pool has computed."""
    pool = _Pool(model, workers)
    busy = pool.run([Job(j.index, j.ready, j.start, j.left, True, j.output) for j in given.jobs])
    return _measured(load, pool.times.first, pool.times.last, max(busy, given.busy))


def forecast(load: Sequence[Arrival], model: WorkerModel, pools: Pools) -> Forecast:
    """Workers that all do both, or that are all of one of the other roles."""
    if pools.both:
        return plain(load, model, pools.workers)
    return decoded(load, prefilled(load, model, pools.prefill), model, pools.decode)


def _job(index: int, arrival: Arrival, *, stays: bool) -> Job:
    lengths = arrival.lengths
    return Job(index, arrival.at, lengths.cached, lengths.prompt - lengths.cached, stays, lengths.output)


def _measured(
    load: Sequence[Arrival], first: dict[int, float], last: dict[int, float], busy: float
) -> Forecast:
    ttfts = [first[index] - arrival.at for index, arrival in enumerate(load)]
    tpots = [
        (last[index] - first[index]) / (arrival.lengths.output - 1)
        for index, arrival in enumerate(load)
        if arrival.lengths.output > 1
    ]
    return Forecast(_percentile(ttfts), _percentile(tpots), busy)


def _percentile(values: list[float]) -> float:
    if not values:
        return 0.0
    return sorted(values)[min(len(values) - 1, math.ceil(PERCENTILE * len(values)) - 1)]
