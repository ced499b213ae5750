"""The process that speaks with Ray for the gateway: actors come and go as it is told on standard input.

A process of its own, because Ray brings threads, signal handlers and memory that no gateway wants.
When its standard input ends, the gateway is gone, and so are the actors.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from typing import Any

import msgspec

from headrace.cluster.actor import WorkerActor
from headrace.cluster.messages import Member, Plan, Pool, Report, Wanted

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 10.0
"""Beyond the drain seconds, for a worker to end that was told to leave."""
_RETRY_SECONDS = 10.0
"""Before another worker is started where one ended by itself: it may be of no use either."""
_PROBE_SECONDS = 5.0
_STORE_BYTES = 80 * 2**20
"""Of a local cluster's object store, which nothing is put into; Ray takes no less."""
_ANY_ADDRESS = ("0.0.0.0", "::")


class _Actor:
    """A worker that Ray was asked for."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.placed = handle.place.remote()
        """Is there once it runs on a node."""
        self.ended = handle.watch.remote()
        self.runs = False
        self.leave_by: float | None = None
        """Set when it was told to leave."""


class _Actors:
    """The workers of one pool."""

    def __init__(self, ray: Any, pool: Pool, plan: Plan) -> None:
        self._ray, self._drain_seconds = ray, plan.drain_seconds
        self._class = ray.remote(WorkerActor).options(
            num_cpus=pool.cpus,
            resources=pool.resources,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=4,
            scheduling_strategy="SPREAD",
        )
        member = Member(
            gateway=plan.gateway,
            secret=plan.secret,
            role=pool.role,
            drain_seconds=plan.drain_seconds,
            settings=pool.settings,
        )
        self._member = msgspec.json.encode(member)
        self._model = pool.model
        self._actors: list[_Actor] = []
        self._next_start = 0.0
        self.wanted = pool.least

    def step(self, now: float) -> str:
        """Brings the pool nearer to what is wanted; why a worker ended that should not have, or nothing."""
        self._look()
        told = self._bury(now)
        if told:
            self._next_start = now + _RETRY_SECONDS
        staying = [actor for actor in self._actors if actor.leave_by is None]
        if len(staying) > self.wanted:
            self._dismiss(staying[self.wanted :], now)
        elif now >= self._next_start:
            for _ in range(self.wanted - len(staying)):
                self._actors.append(_Actor(self._class.remote(self._member)))
        return told

    def counts(self) -> tuple[int, int]:
        """Workers that run, and that wait for a node."""
        running = sum(actor.runs for actor in self._actors)
        return running, len(self._actors) - running

    def kill(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor.handle, no_restart=True)
        self._actors.clear()

    def _look(self) -> None:
        for actor in self._actors:
            if not actor.runs:
                actor.runs = bool(self._ray.wait([actor.placed], timeout=0)[0])

    def _bury(self, now: float) -> str:
        """Drops those that have ended."""
        told = ""
        for actor in list(self._actors):
            ended = bool(self._ray.wait([actor.ended], timeout=0)[0])
            late = actor.leave_by is not None and now > actor.leave_by
            if not ended and not late:
                continue
            if actor.leave_by is None:
                told = f"a worker of {self._model} {self._outcome(actor)}"
            self._ray.kill(actor.handle, no_restart=True)
            self._actors.remove(actor)
        return told

    def _outcome(self, actor: _Actor) -> str:
        try:
            return str(self._ray.get(actor.ended))
        except self._ray.exceptions.RayError as error:
            return f"was given up by Ray: {str(error).splitlines()[0]}"

    def _dismiss(self, actors: list[_Actor], now: float) -> None:
        """Those that wait for a node go at once, others when what they compute has ended."""
        for actor in actors:
            if actor.runs:
                actor.handle.leave.remote()
                actor.leave_by = now + self._drain_seconds + _GRACE_SECONDS
            else:
                actor.leave_by = now


class _Gateway:
    """The other end of standard input and output."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)  # what Ray prints is no message
        self._stdin = open(0, "rb", closefd=False)  # noqa: SIM115 (it is kept to the end)
        self._orders: queue.Queue[Wanted | None] = queue.Queue()
        self._told: Report | None = None

    def plan(self) -> Plan:
        plan = msgspec.json.decode(self._stdin.readline(), type=Plan)
        threading.Thread(target=self._read, name="gateway", daemon=True).start()
        return plan

    def next(self) -> Wanted | None:
        """The next order; None when the gateway is gone. Raises queue.Empty where none comes for a while."""
        return self._orders.get(timeout=_POLL_SECONDS)

    def tell(self, report: Report) -> None:
        if report != self._told:
            self._told = report
            os.write(self._out, msgspec.json.encode(report) + b"\n")

    def _read(self) -> None:
        for line in self._stdin:
            self._orders.put(msgspec.json.decode(line, type=Wanted))
        self._orders.put(None)


def main() -> None:
    gateway = _Gateway()
    plan = gateway.plan()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    import ray

    try:
        _connect(ray, plan.address)
    except Exception as error:  # whatever Ray raises, it is all that the user can be told
        gateway.tell(Report(failed=f"no Ray cluster at '{plan.address}': {str(error).splitlines()[0]}"))
        sys.exit(1)
    try:
        host, _, port = plan.gateway.rpartition(":")
        if host.strip("[]") in _ANY_ADDRESS:
            plan = msgspec.structs.replace(plan, gateway=f"{_node_address(ray)}:{port}")
        _keep(gateway, [_Actors(ray, pool, plan) for pool in plan.pools])
    except BrokenPipeError:
        pass  # the gateway was killed
    except Exception as error:  # nobody reads this process's standard error
        gateway.tell(Report(failed=f"{type(error).__name__}: {error}"))
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():  # Ray would try for minutes
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS).close()
    local = {"include_dashboard": False, "object_store_memory": _STORE_BYTES} if address == "local" else {}
    ray.init(address=address, namespace="headrace", log_to_driver=False, **local)


def _node_address(ray: Any) -> str:
    """Of this machine, as the cluster's other nodes reach it."""
    return str(ray.util.get_node_ip_address())


def _keep(gateway: _Gateway, pools: list[_Actors]) -> None:
    """Until the gateway is gone."""
    try:
        while True:
            ended = [told for actors in pools if (told := actors.step(time.monotonic()))]
            counts = [actors.counts() for actors in pools]
            placed, pending = [count[0] for count in counts], [count[1] for count in counts]
            gateway.tell(Report(placed=placed, pending=pending, ended="; ".join(ended)))
            try:
                order = gateway.next()
            except queue.Empty:
                continue
            if order is None:
                return
            for actors, wanted in zip(pools, order.counts, strict=True):
                actors.wanted = wanted
    finally:
        for actors in pools:
            actors.kill()


if __name__ == "__main__":
    main()
