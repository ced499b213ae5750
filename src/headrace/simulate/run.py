"""The simulation itself: arrivals and ends of steps, in order, through the balancer and the engines."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.engine.block_digest import chain, root_digest
from headrace.engine.engine import EngineConfig
from headrace.engine.request import Output
from headrace.fleet.balance import Ask, Balancer, Policy
from headrace.fleet.step_time import StepTime
from headrace.simulate.load import SimulatedRequest
from headrace.simulate.replica import NAMESPACE, SimulatedReplica
from headrace.simulate.under_way import StepsUnderWay


@dataclass(frozen=True, slots=True)
class FleetModel:
    """The fleet that is simulated."""

    step_time: StepTime
    replicas: int
    policy: Policy
    cache_blocks: int
    """Of each replica, in blocks of 16 units."""
    max_batch_tokens: int
    max_running: int
    unit: int
    """Tokens that one of the engines' stands for."""

    def unit_time(self) -> StepTime:
        """The step time for the balancer, which counts in units as the engines do."""
        time, unit = self.step_time, self.unit
        return StepTime(base=time.base * unit, row=time.row * unit, context=time.context * unit**2)


@dataclass(slots=True)
class Served:
    """What became of one request; seconds of the simulation's clock, lengths in tokens."""

    arrival: float
    input_len: int
    output_len: int
    replica: int
    cached: int = 0
    first: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class Simulated:
    """What a simulation brought."""

    served: list[Served]
    busy: list[float] = field(default_factory=list)
    """Seconds that each replica was computing."""


def simulate(requests: Iterable[SimulatedRequest], model: FleetModel) -> Simulated:
    """Run all requests, in order of their arrival, to their end."""
    return _Simulation(model).run(requests)


class _Simulation:
    def __init__(self, model: FleetModel):
        config = EngineConfig(model.cache_blocks, model.max_batch_tokens, model.max_running)
        self.model = model
        self.balancer = Balancer(model.policy)
        self.replicas: list[SimulatedReplica] = []
        for number in range(model.replicas):
            replica = SimulatedReplica(f"replica-{number}", model.step_time, model.unit, config)
            self.replicas.append(replica)
            self.balancer.add(replica.name, model.unit_time(), model.max_batch_tokens)
        self.index = {replica.name: number for number, replica in enumerate(self.replicas)}
        self.served: list[Served] = []
        self.steps = StepsUnderWay(model.step_time)
        self.root = root_digest(NAMESPACE)

    def run(self, requests: Iterable[SimulatedRequest]) -> Simulated:
        for request in requests:
            self._end_steps(request.arrival)
            self._arrive(request)
        self._end_steps(math.inf)
        return Simulated(self.served, [replica.busy for replica in self.replicas])

    def _arrive(self, request: SimulatedRequest) -> None:
        request_id, now = str(len(self.served)), request.arrival
        ask = Ask(len(request.prompt), [*chain(self.root, request.prompt)])
        chosen = self.balancer.choose(ask, self.index, now)
        self.balancer.dispatched(request_id, ask, chosen, now)
        number = self.index[chosen.replica]
        self.served.append(Served(now, request.input_len, request.output_len, number))
        replica = self.replicas[number]
        replica.add(request_id, request.prompt, request.outputs)
        self._begin_step(replica, now)

    def _begin_step(self, replica: SimulatedReplica, now: float) -> None:
        seconds = replica.begin(now)
        if seconds is not None:
            self.steps.begin(replica, seconds, now)

    def _end_steps(self, until: float) -> None:
        while (now := self.steps.next_end) <= until and now < math.inf:
            replica = self.steps.end()
            outputs = [*replica.end(now)]
            self.balancer.cache_events(replica.name, *replica.cache_events())
            for output in outputs:
                self._take(output, now)
            self._begin_step(replica, now)

    def _take(self, output: Output, now: float) -> None:
        served = self.served[int(output.id)]
        if not served.first:
            served.first = now
            served.cached = min(output.cached_tokens * self.model.unit, served.input_len)
            self.balancer.first_token(output.id, now)
        if output.finish_reason is not None:
            served.last = now
            self.balancer.finished(output.id, now)
