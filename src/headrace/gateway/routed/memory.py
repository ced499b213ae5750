"""What the models of the fleet have shown, kept in the store from one start of the server to the next."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from headrace.gateway.beside import beside
from headrace.gateway.routed.member import Member
from headrace.routing.learner import Learner, recognised
from headrace.routing.store import Store

log = logging.getLogger("headrace.gateway")

_FORMAT = 1
"""Raised whenever what is saved changes its meaning."""
_KEEP_SECONDS = 60.0
"""What was learnt since is lost where the server is killed."""
_STALE_SECONDS = 30 * 86400.0


class _Kept(msgspec.Struct):
    """What stands in the store of one learner."""

    about: str
    """What it was learnt of: of anything else it says nothing."""
    time: float
    """When it was kept; seconds since 1970."""
    known: Any


class Memory:
    """Several servers may keep theirs in one store: what was kept last is what the next one takes up."""

    def __init__(
        self, members: Mapping[str, Member], store: Store, *, machine: str, workers: Mapping[str, int]
    ):
        """Speeds depend on the `machine`, and on the number of a model's workers."""
        self._members = members
        self._store = store
        self._machine = machine
        self._workers = workers
        self._kept: dict[str, object] = {}

    def take_up(self) -> None:
        """What was kept, is not stale, and is about these models on this machine."""
        for member in self._members.values():
            for kind, learner in member.learners.items():
                self._take_up(_name(member, kind), learner, self._about(member, learner))

    def _take_up(self, name: str, learner: Learner, about: str | None) -> None:
        saved = self._store.recall(name)
        if saved is None:
            return
        kept = recognised(saved, _Kept)
        if kept is not None and (kept.about != about or time.time() - kept.time > _STALE_SECONDS):
            return
        if kept is None or not learner.load(kept.known, time.monotonic()):
            log.warning("%s: the %s are damaged, and learnt anew", self._store.path, name)

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Keeps what is learnt while the block runs, now and then, and when it ends."""
        try:
            async with beside(self._keep_on()):
                yield
        finally:
            for member in self._members.values():
                self._keep(member)

    async def _keep_on(self) -> None:
        while True:
            for member in self._members.values():
                await asyncio.sleep(_KEEP_SECONDS / len(self._members))
                self._keep(member)

    def _keep(self, member: Member) -> None:
        """Queues what has changed; a thread of the store's writes it. Takes some tenths of a millisecond."""
        for kind, learner in member.learners.items():
            name, about, known = _name(member, kind), self._about(member, learner), learner.save()
            if about is not None and known != self._kept.get(name):
                self._store.remember(name, msgspec.to_builtins(_Kept(about, time.time(), known)))
                self._kept[name] = known

    def _about(self, member: Member, learner: Learner) -> str | None:
        """None where it cannot be told now what answers under the member's name."""
        identity = member.identity
        if identity is None:
            return None
        anywhere = learner is member.lengths or learner is member.prompts
        machine = () if anywhere else (self._machine, self._workers.get(member.name))
        return repr((_FORMAT, *identity, *machine))


def _name(member: Member, kind: str) -> str:
    return f"{kind} of {member.name}"
