"""The workers that joined from other hosts, and the fleets that they belong to."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence

import msgspec

from headrace.fleet.channel import Channel
from headrace.fleet.crew import Crew
from headrace.fleet.endpoint import Endpoint
from headrace.fleet.joined import JoinedReplica
from headrace.fleet.state import ReplicaHealth
from headrace.worker.messages import (
    PROTOCOL_VERSION,
    Hello,
    Ready,
    Refused,
    Reset,
    Welcome,
    decode_to_gateway,
)

log = logging.getLogger("headrace.fleet")


class Registry:
    """Admits workers, listens for signs of life, and hands each worker to its model's fleet.

    A worker whose model no fleet has now, because it is not loaded, is kept until one comes. Lives in one
    event loop.
    """

    def __init__(self, endpoint: Endpoint, served: Callable[[], Sequence[str]], beat: float = 1.0) -> None:
        """Listens at once. `served`: the names of all models that there may be fleets of.

        `beat`: seconds between two signs of life. Raises ConfigError where it cannot listen.
        """
        self._served = served
        self._beat = beat
        self._replicas: dict[str, JoinedReplica] = {}
        """By the worker's instance."""
        self._fleets: dict[str, Crew] = {}
        """By model."""
        self._channel = Channel(endpoint, self._on_stranger)
        self._pulse = asyncio.create_task(self._keep_beating(), name="heartbeat of joined workers")

    @property
    def address(self) -> str:
        """HOST:PORT where workers connect."""
        return self._channel.address.removeprefix("tcp://")

    def health(self) -> list[ReplicaHealth]:
        """Every worker's state, in a fleet or not."""
        return [replica.health() for replica in self._replicas.values()]

    def attach(self, model: str, fleet: Crew) -> None:
        """Gives the fleet all workers of its model, now and later."""
        self._fleets[model] = fleet
        self._hand_out()

    def detach(self, model: str, fleet: Crew) -> None:
        """Gives the fleet no more workers; those that it has are its to drain. Nothing happens twice."""
        if self._fleets.get(model) is fleet:
            del self._fleets[model]

    async def close(self) -> None:
        """Hangs up: workers look for the next gateway at this address."""
        self._pulse.cancel()
        await asyncio.wait([self._pulse])
        self._channel.close()

    def _on_stranger(self, identity: str, data: bytes) -> None:
        """Who is in no session introduces itself; or its session is over, and it does not know yet."""
        head = msgspec.msgpack.decode(data)
        if not isinstance(head, list) or head[:1] != ["Hello"]:
            self._channel.send(identity, Reset())
            return
        version, name = (*head[1:3], None, None)[:2]
        if version != PROTOCOL_VERSION:
            self._refuse(identity, f"{name} speaks version {version}, this gateway {PROTOCOL_VERSION}")
            return
        hello = decode_to_gateway(data)
        assert isinstance(hello, Hello)
        if hello.model not in self._served():
            known = ", ".join(f"'{known}'" for known in self._served())
            self._refuse(identity, f"{name} has the model '{hello.model}', this gateway serves {known}")
            return
        self._admit(identity, hello)

    def _refuse(self, identity: str, reason: str) -> None:
        log.warning("a worker is refused: %s", reason)
        self._channel.send(identity, Refused(reason))

    def _admit(self, identity: str, hello: Hello) -> None:
        replica = self._replicas.get(hello.instance)
        if replica is None:
            name = self._unused(hello.name)
            replica = JoinedReplica(name, hello, self._channel, self._objection)
            self._replicas[hello.instance] = replica
        log.info("%s joined, to serve %s", replica.name, hello.model)
        replica.begin(identity)
        self._channel.send(identity, Welcome(self._beat))
        self._hand_out()

    def _unused(self, name: str) -> str:
        """The name, with a number where another worker has it."""
        names = {replica.name for replica in self._replicas.values()}
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        return name if name not in names else next(other for other in numbered if other not in names)

    def _objection(self, ready: Ready) -> str:
        fleet = self._fleets.get(ready.model)
        return "" if fleet is None else fleet.objection(ready)

    def _hand_out(self) -> None:
        for replica in self._replicas.values():
            fleet = self._fleets.get(replica.model)
            if fleet is not None and replica.free:
                fleet.add(replica)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            for instance, replica in list(self._replicas.items()):
                replica.beat()
                if replica.forgotten:
                    del self._replicas[instance]
                    replica.kill()
            self._hand_out()
