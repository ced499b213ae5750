"""The prefix caches of a model's replicas: what they hold, and pins that outlive a worker."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import secrets
from array import array
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.sampling import SamplingParams
from headrace.engine.prefix_report import CachedPrefix
from headrace.errors import HeadraceError, RequestError, WorkerUnavailableError
from headrace.fleet.crew import Crew
from headrace.fleet.replica import Replica
from headrace.fleet.state import State
from headrace.worker.messages import (
    ExplainPrefix,
    ListPrefixes,
    PinPrefix,
    PrefixAnswer,
    PrefixesListed,
    PrefixExplained,
    PrefixPinned,
    PrefixQuestion,
    Submit,
    UnpinPrefix,
)

log = logging.getLogger("headrace.fleet")

WARM_PRIORITY = 1 << 20
"""Warming waits for all that somebody waits for."""
_ATTEMPTS = 3
"""What was warmed may be evicted again before it is pinned, if seldom."""
_UNAVAILABLE = "no worker takes requests now; try again soon"

Answer = TypeVar("Answer", bound=PrefixAnswer)


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that is pinned on every replica, now and after a restart."""

    id: str
    tokens: tuple[int, ...]
    """Whole blocks."""
    salt: str


class Prefixes:
    """Questions to all replicas that are ready; lives in their event loop."""

    def __init__(self, crew: Crew) -> None:
        self.pins: dict[str, Pin] = {}
        """By id."""
        self._secret = secrets.token_bytes(32)
        self._crew = crew
        self._ids = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_ready(self, replica: Replica) -> None:
        """A worker is ready, perhaps in another's place: it is given the pins."""
        if self.pins:
            self._start(self._restore(replica))

    def id_of(self, tokens: Sequence[int], salt: str = "") -> str:
        """16 hexadecimal digits that stand for a prefix.

        Drawn with a secret of this process, so that who only sees one cannot try out what it stands for.
        """
        digest = hashlib.blake2b(array("i", tokens), digest_size=8, key=self._secret)
        digest.update(salt.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    async def explain(self, tokens: Sequence[int], salt: str = "") -> PrefixExplained:
        """The answer of the replica that has most of the tokens. Raises HeadraceError where none answers."""
        answers = [
            self._ask(replica, ExplainPrefix(self._id(), list(tokens), salt), PrefixExplained)
            for replica in self._ready()
        ]
        return max(await asyncio.gather(*answers), key=lambda answer: answer.cached)

    async def hottest(self, limit: int, salt: str = "") -> list[CachedPrefix]:
        """The prefixes that saved most tokens, over all replicas, and the pinned ones."""
        questions = [
            self._ask(replica, ListPrefixes(self._id(), limit, salt), PrefixesListed)
            for replica in self._ready()
        ]
        found: dict[tuple[int, ...], CachedPrefix] = {}
        for prefix in (prefix for answer in await asyncio.gather(*questions) for prefix in answer.prefixes):
            if (other := found.get(prefix.tokens)) is not None:
                prefix = prefix._replace(hits=prefix.hits + other.hits, pinned=prefix.pinned or other.pinned)
            found[prefix.tokens] = prefix
        ranked = sorted(found.values(), key=lambda prefix: -prefix.hits * len(prefix.tokens))
        return [prefix for rank, prefix in enumerate(ranked) if rank < limit or prefix.pinned]

    async def warm(self, tokens: Sequence[int], salt: str = "") -> None:
        """Has every replica compute and cache the tokens, after all else that waits there."""
        await asyncio.gather(*(self._warm(replica, tokens, salt) for replica in self._ready()))

    async def pin(self, tokens: Sequence[int], salt: str = "") -> tuple[Pin, PrefixPinned]:
        """Computes the tokens where they are not cached, and pins their whole blocks on every replica.

        Raises RequestError where there is no whole block or no room for more pins.
        """
        whole = tuple(tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS])
        if not whole:
            raise RequestError(
                f"A pin holds whole blocks of {BLOCK_TOKENS} tokens; this prompt has {len(tokens)} tokens."
            )
        pin = Pin(self.id_of(whole, salt), whole, salt)
        new = self.pins.setdefault(pin.id, pin) is pin
        try:
            told = await asyncio.gather(*(self._pin(replica, pin) for replica in self._ready()))
        except (
            BaseException
        ):  # nobody learns the id of what was pinned so far, even where it was a cancellation
            if new:
                self.pins.pop(pin.id, None)
                self._start(self._unpin(pin))
            raise
        return pin, told[0]

    async def unpin(self, pin_id: str) -> Pin | None:
        """Takes a pin back everywhere; None where there is none of that id."""
        pin = self.pins.pop(pin_id, None)
        if pin is not None:
            await self._unpin(pin)
        return pin

    async def _unpin(self, pin: Pin) -> None:
        questions = (
            self._ask(replica, UnpinPrefix(self._id(), list(pin.tokens), pin.salt), PrefixPinned)
            for replica in self._crew.replicas
            if replica.state is State.READY
        )
        for told in await asyncio.gather(*questions, return_exceptions=True):
            if isinstance(told, BaseException) and not isinstance(told, HeadraceError):
                raise told  # a worker that died has no pins left

    async def _pin(self, replica: Replica, pin: Pin) -> PrefixPinned:
        for _ in range(_ATTEMPTS):
            question = PinPrefix(self._id(), list(pin.tokens), pin.salt)
            told = await self._ask(replica, question, PrefixPinned)
            if told.tokens == len(pin.tokens):
                return told
            await self._warm(replica, pin.tokens, pin.salt)
        raise RequestError(
            "The prefix was evicted while it was being pinned: the cache is too busy. Try again.",
            status=503,
            code="cache_busy",
        )

    async def _warm(self, replica: Replica, tokens: Sequence[int], salt: str) -> None:
        stream = self._up(replica).own_stream(
            Submit(
                id=self._id(),
                prompt=list(tokens),
                max_tokens=1,
                sampling=SamplingParams(temperature=0),
                ignore_eos=True,
                priority=WARM_PRIORITY,
                salt=salt,
            )
        )
        async with aclosing(stream):
            async for _ in stream:
                pass

    async def _ask(self, replica: Replica, question: PrefixQuestion, kind: type[Answer]) -> Answer:
        answer = await self._up(replica).ask(question)
        assert isinstance(answer, kind)
        return answer

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _restore(self, replica: Replica) -> None:
        for pin in list(self.pins.values()):
            if pin.id in self.pins:
                await self._restore_one(replica, pin)

    async def _restore_one(self, replica: Replica, pin: Pin) -> None:
        try:
            await self._pin(replica, pin)
        except HeadraceError as error:
            log.warning("%s: the pin %s is not restored: %s", replica.name, pin.id, error)

    def _ready(self) -> list[Replica]:
        ready = [replica for replica in self._crew.replicas if replica.state is State.READY]
        if not ready:
            raise WorkerUnavailableError(_UNAVAILABLE)
        return ready

    @staticmethod
    def _up(replica: Replica) -> Replica:
        """The replica, which may have ended since it was chosen."""
        if replica.state is not State.READY:
            raise WorkerUnavailableError(_UNAVAILABLE)
        return replica

    def _id(self) -> str:
        return f"prefix-{next(self._ids)}"
