"""Transfers as unreliable as real ones: they stall, break, write junk before they are done, and stop late."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from engine.fake_backend import FakeBackend, _chain
from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.engine import Engine
from headrace.engine.request import Request
from headrace.engine.transfers import Progress, Reservation


class FakeTransfers:
    """Everything that imports into and exports from one engine on a fake backend."""

    def __init__(self, engine: Engine, backend: FakeBackend, random: Random):
        self._engine = engine
        self._backend = backend
        self._random = random
        self._imports: dict[str, _Import] = {}
        self._exports: dict[str, Progress] = {}
        self._tokens: dict[str, Sequence[int]] = {}
        self._unwanted: set[str] = set()
        self._patience = random.choice((0.05, 0.3, 0.9))

    def expect(self, request: Request, tokens: Sequence[int]) -> None:
        """A request that was added, and all the tokens that it will ever have."""
        self._tokens[request.id] = tokens

    def move(self) -> None:
        """What happens between two moments at which the engine is looked at."""
        news = self._engine.transfers.news()
        for reservation in news.reserved:
            assert reservation.id not in self._imports, "blocks were reserved twice"
            tokens = self._tokens[reservation.id]
            self._imports[reservation.id] = _Import(reservation, tokens, self._backend, self._random)
        for progress in news.progress:
            before = self._exports.get(progress.id)
            if before is not None:
                assert not before.complete and progress.tokens >= before.tokens
                for blocks, earlier in zip(progress.blocks, before.blocks, strict=True):
                    assert blocks[: len(earlier)] == earlier, "a block moved while it was read"
            self._exports[progress.id] = progress
        assert not self._unwanted & set(news.unwanted)
        self._unwanted.update(news.unwanted)
        for name in tuple(self._imports):
            self._import(name)
        for name in tuple(self._exports):
            self._export(name)

    def _import(self, name: str) -> None:
        part = self._imports[name]
        part.write_junk()
        if self._random.random() < self._patience:
            return  # stalls, with its request cancelled perhaps
        if name in self._unwanted or self._random.random() < 0.2 or part.known == part.reservation.end:
            del self._imports[name]
            self._engine.transfers.end_import(name)
        else:
            self._engine.transfers.imported(name, part.write())

    def _export(self, name: str) -> None:
        progress = self._exports[name]
        for group, blocks in enumerate(progress.blocks):
            tokens = list(self._tokens[name][: progress.tokens])
            assert self._backend.read(group, list(blocks), progress.tokens)[0] == tokens, "a block was reused"
        done = progress.complete or name in self._unwanted or self._random.random() < 0.05
        if done and self._random.random() > self._patience:
            del self._exports[name]
            self._engine.transfers.end_export(name)


class _Import:
    """One import: `known` tokens are in their places, those behind them may be anything."""

    def __init__(self, reservation: Reservation, tokens: Sequence[int], backend: FakeBackend, random: Random):
        self.reservation = reservation
        self.known = reservation.start
        self._tokens = tokens
        self._backend = backend
        self._random = random

    def write(self) -> int:
        """Write a few tokens more; how many are there then."""
        end = self._random.randint(self.known, self.reservation.end)
        chain = 0
        for position, token in enumerate(self._tokens[:end]):
            chain = _chain(chain, token)
            if position >= self.known:
                self._set(position, token, chain)
        self.known = end
        return end

    def write_junk(self) -> None:
        """A block whose bytes have come in part."""
        if self.known < self.reservation.end:
            self._set(self._random.randrange(self.known, self.reservation.end), -7, -7)

    def _set(self, position: int, token: int, chain: int) -> None:
        index, slot = divmod(position - self.reservation.start, BLOCK_TOKENS)
        for group, blocks in enumerate(self.reservation.blocks):
            self._backend.tokens[group][blocks[index], slot] = token
            self._backend.chains[group][blocks[index], slot] = chain
