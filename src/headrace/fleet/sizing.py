"""What a running fleet's traffic asks of it: a plan whenever somebody wants one, and roles moved by it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from headrace.errors import RequestError
from headrace.fleet.crew import Crew
from headrace.fleet.forecast import Forecast, Pools, forecast
from headrace.fleet.modelled_worker import WorkerModel
from headrace.fleet.planner import DRAWN, Limits, Plan, Tier, plan, splits
from headrace.fleet.role_mover import RoleMover, moves
from headrace.fleet.state import Role, State
from headrace.fleet.step_time import StepTime
from headrace.fleet.stream import Stream
from headrace.fleet.traffic import Load, Traffic
from headrace.worker.settings import WorkerSettings

log = logging.getLogger("headrace.fleet")

LOOK_SECONDS = 15.0
"""Between two looks at the roles."""


class Sizing:
    """Observes traffic, plans, and moves roles where limits are given."""

    def __init__(
        self,
        crew: Crew,
        settings: WorkerSettings,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settings` are each worker's. Without limits nothing moves, and plans must be asked with some."""
        self.limits = limits or Limits()
        self._crew = crew
        self._settings = settings
        self._clock = clock
        self._traffic = Traffic()
        self._streams: dict[str, Stream] = {}
        self._mover = RoleMover(self.limits)

    def arrived(self, stream: Stream) -> None:
        """A request came."""
        self._streams[stream.id] = stream
        self._traffic.arrived(stream.id, len(stream.message.prompt), self._clock())

    def ended(self, request_id: str) -> None:
        """It has ended, however; nothing happens where it is not known."""
        if (stream := self._streams.pop(request_id, None)) is not None:
            self._traffic.ended(request_id, stream.cached, len(stream.output), self._clock())

    @property
    def load(self) -> Load | None:
        """The traffic of the last minutes; None where there was too little."""
        return self._traffic.load(self._clock())

    async def speeds(self) -> dict[str, StepTime]:
        """By replica, as the workers measured; without those that have computed too little."""
        stats = await self._crew.stats()
        return {
            name: StepTime(base=one.step_base, row=one.step_row)
            for name, one in stats.items()
            if one.step_row > 0
        }

    async def plan(self, limits: Limits | None = None) -> Plan:
        """The cheapest fleet of such workers that keeps the limits, its own where none are given.

        Raises RequestError, 409, while too little is known; 400 without limits.
        """
        limits = limits or self.limits
        if limits == Limits():
            raise RequestError("A plan needs a limit: of TTFT, of TPOT, or of both.", "ttft_limit_ms")
        load, worker = self.load, await self._worker()
        if load is None or worker is None:
            raise RequestError(
                "There has been too little traffic to plan by; try again when some requests have ended.",
                status=409,
                code="too_little_traffic",
            )
        return await asyncio.to_thread(plan, load, [Tier("worker", worker)], limits)

    async def run(self) -> None:
        """Moves roles for ever, where limits are given."""
        while self.limits != Limits():
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Forecasts what each way to divide the workers would do, and moves roles where it is time."""
        roles = self._roles()
        load, worker = self.load, await self._worker()
        if load is None or worker is None or len(roles) < 2 or not self._can_hand_over():
            return
        current = _pools(roles)
        told = await asyncio.to_thread(_forecasts, load, worker, current, self.limits)
        wanted = self._mover.look(self._clock(), current, told)
        if wanted is None or roles != self._roles():
            return
        log.warning(
            "the limits of TTFT and TPOT would be exceeded: %d workers become %d for both, %d for prompts, "
            "%d for answers",
            *(len(roles), *wanted),
        )
        try:
            for name, role in moves(roles, wanted):
                self._crew.set_role(name, role)
        except RequestError as error:  # a worker has gone in the meantime
            log.warning("the roles stay: %s", error)

    def _roles(self) -> dict[str, Role]:
        return {r.name: r.role for r in self._crew.replicas if r.state is State.READY}

    def _can_hand_over(self) -> bool:
        ready = [r.ready for r in self._crew.replicas if r.state is State.READY and r.ready is not None]
        return all(one.transfer and one.fingerprint == ready[0].fingerprint for one in ready)

    async def _worker(self) -> WorkerModel | None:
        """The mean of the workers; None where none has shown its speed."""
        speeds = list((await self.speeds()).values())
        ready = [replica.ready for replica in self._crew.replicas if replica.ready is not None]
        if not speeds or not ready:
            return None
        mean = StepTime(
            base=sum(speed.base for speed in speeds) / len(speeds),
            row=sum(speed.row for speed in speeds) / len(speeds),
        )
        room = min(one.cache_blocks * one.block_tokens for one in ready)
        return WorkerModel(mean, self._settings.max_batch_tokens, self._settings.max_running, room)


def _forecasts(
    load: Load, worker: WorkerModel, current: Pools, limits: Limits
) -> list[tuple[Pools, Forecast]]:
    """Of all ways to divide the workers, or of the present one alone where it keeps the limits."""
    if not (current.both and current.workers > current.both):
        told = forecast(list(load.drawn(DRAWN)), worker, current)
        if limits.strain(told) <= 1:
            return [(current, told)]
    return list(splits(load, worker, current.workers))


def _pools(roles: dict[str, Role]) -> Pools:
    found = list(roles.values())
    return Pools(found.count("both"), found.count("prefill"), found.count("decode"))
