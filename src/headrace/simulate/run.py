"""The simulation itself: arrivals and ends of steps, in order, through the balancer and the engines."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from headrace.backends.sampling import SamplingParams
from headrace.engine.engine import EngineConfig
from headrace.engine.request import Output
from headrace.fleet.balance import Policy
from headrace.fleet.dispatch import LEAST_HANDOFF, Dispatcher
from headrace.fleet.replica import Replica
from headrace.fleet.shape import FleetShape
from headrace.fleet.step_time import StepTime
from headrace.fleet.stream import Stream
from headrace.simulate.handoff import Handoff, Links
from headrace.simulate.load import SimulatedRequest
from headrace.simulate.replica import NAMESPACE, SimulatedReplica
from headrace.simulate.under_way import StepsUnderWay
from headrace.worker.messages import Submit


@dataclass(frozen=True, slots=True)
class FleetModel:
    """The fleet that is simulated."""

    step_time: StepTime
    shape: FleetShape
    policy: Policy
    cache_blocks: int
    """Of each replica, in blocks of 16 units."""
    max_batch_tokens: int
    max_running: int
    unit: int
    """Tokens that one of the engines' stands for."""
    transfer_seconds: float = 0.0
    """For one token's keys and values, from one replica to another."""

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
    prefilled_by: int
    """The replica itself, or the one that computed the prompt for it."""
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
        self.now = 0.0
        self.dispatcher = Dispatcher(
            model.max_batch_tokens,
            lambda: self.now,
            policy=model.policy,
            step_time=model.unit_time(),
            least_handoff=-(-LEAST_HANDOFF // model.unit),
        )
        self.replicas = [
            SimulatedReplica(f"replica-{number}", role, model.step_time, model.unit, config)
            for number, role in enumerate(model.shape.roles())
        ]
        # The dispatcher looks at a replica's name, role, and what its worker says of itself.
        self.seen = [cast(Replica, replica) for replica in self.replicas]
        for replica in self.seen:
            self.dispatcher.ready(replica)
        self.index = {replica.name: number for number, replica in enumerate(self.replicas)}
        self.served: list[Served] = []
        self.steps = StepsUnderWay(model.step_time)
        self.handoffs: dict[str, Handoff] = {}
        """By the request's id and by the handoff's own."""
        self.links = Links(model.transfer_seconds * model.unit)

    def run(self, requests: Iterable[SimulatedRequest]) -> Simulated:
        for request in requests:
            self._run_until(request.arrival)
            self._arrive(request)
        self._run_until(math.inf)
        return Simulated(self.served, [replica.busy for replica in self.replicas])

    def _run_until(self, until: float) -> None:
        while (now := min(self.steps.next_end, self.links.next_arrival)) <= until and now < math.inf:
            self.now = now
            if self.links.next_arrival <= self.steps.next_end:
                handoff = self.links.arrive()
                self._go_on(handoff.target)
                self._go_on(handoff.source)
            else:
                self._end_step()
        self.now = until

    def _arrive(self, request: SimulatedRequest) -> None:
        request_id = str(len(self.served))
        asked = Submit(request_id, list(request.prompt), request.outputs, SamplingParams())
        stream = Stream(asked, lambda _: None, model=NAMESPACE.model)
        placement = self.dispatcher.place(stream, self.seen)
        assert placement is not None
        number = prefilled_by = self.index[placement.replica.name]
        target = self.replicas[number]
        if placement.prefiller is not None:
            prefilled_by = self.index[placement.prefiller.name]
            handoff = Handoff(placement.handoff_id, request_id, self.replicas[prefilled_by], target)
            self.handoffs[request_id] = self.handoffs[handoff.id] = handoff
            handoff.source.prefill(handoff.id, request.prompt)
            self._go_on(handoff.source)
        lengths = request.input_len, request.output_len
        self.served.append(Served(request.arrival, *lengths, number, prefilled_by))
        target.add(request_id, request.prompt, request.outputs, importing=placement.prefiller is not None)
        self._go_on(target)

    def _go_on(self, replica: SimulatedReplica) -> None:
        """Begin a step, where there is something to do and none is under way."""
        seconds = replica.begin(self.now)
        if seconds is not None:
            self.steps.begin(replica, seconds, self.now)
        self._transfer(replica)

    def _end_step(self) -> None:
        replica = self.steps.end()
        outputs = [*replica.end(self.now)]
        self.dispatcher.cache_changed(cast(Replica, replica), *replica.cache_events())
        for output in outputs:
            self._take(output)
        self._go_on(replica)

    def _transfer(self, replica: SimulatedReplica) -> None:
        """Send what can be sent, by what the replica's engine says of its blocks on loan."""
        if not replica.engine.transfers:
            return
        news = replica.engine.transfers.news()
        for reservation in news.reserved:
            self.handoffs[reservation.id].reserved(reservation)
        for progress in news.progress:
            self.handoffs[progress.id].advance(progress)
        for name in (*(one.id for one in news.reserved), *(one.id for one in news.progress)):
            self.links.send(self.handoffs[name], self.now)
        for name in news.unwanted:
            self.handoffs[name].end()
        for name in (*(one.id for one in news.reserved), *news.unwanted):
            if self.handoffs[name].ended:  # whoever waited for its blocks can have them
                self._go_on(self.handoffs[name].target)
                self._go_on(self.handoffs[name].source)

    def _take(self, output: Output) -> None:
        handoff = self.handoffs.get(output.id)
        if handoff is not None and output.id == handoff.id:
            self.dispatcher.began(output.id)
            self.dispatcher.ended(output.id)
            self._cached(handoff.request_id, output)
            return
        served = self.served[int(output.id)]
        if not served.first:
            served.first = self.now
            self._cached(output.id, output)
            self.dispatcher.began(output.id)
            if handoff is not None:
                handoff.end()
                self.dispatcher.ended(handoff.id)
                self._go_on(handoff.source)
        if output.finish_reason is not None:
            served.last = self.now
            self.dispatcher.ended(output.id)

    def _cached(self, request_id: str, output: Output) -> None:
        served = self.served[int(request_id)]
        found = min(output.cached_tokens * self.model.unit, served.input_len)
        served.cached = max(served.cached, found)
