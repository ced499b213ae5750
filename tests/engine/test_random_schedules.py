"""A thousand random schedules against a model of what must hold after every step.

Run one of them with `pytest -k "seed123-"`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from engine.fake_backend import VOCAB, FakeBackend, expected_tokens
from engine.fake_drafter import FakeDrafter
from engine.fake_transfer import FakeTransfers
from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.sampling import SamplingParams
from headrace.engine.engine import Engine, EngineConfig
from headrace.engine.model_drafter import ModelDrafter
from headrace.engine.request import FinishReason, Output, PrefixNamespace, Request
from headrace.engine.sequence import Sequence, Status, blocks_for
from headrace.engine.speculation import Speculation
from headrace.errors import RequestError


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed{seed}-") for seed in range(1000)])
def test_any_schedule_keeps_every_invariant_and_gives_every_request_its_own_tokens(seed: int):
    Schedule(seed).run()


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed{seed}-") for seed in range(500)])
def test_any_schedule_does_so_with_drafted_tokens_too(seed: int):
    random = Random(seed)
    drafter = FakeDrafter(random, right=random.choice((0.0, 0.5, 0.9, 1.0)), silent=random.choice((0.0, 0.2)))
    schedule = Schedule(seed, Speculation(drafter, random.choice((1, 3, 8, 40)), row_cost=0.001))
    schedule.run()
    assert not drafter.known, "a sequence that ended was not forgotten"
    stats = schedule.engine.stats
    assert stats.accepted_tokens <= stats.drafted_tokens


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed{seed}-") for seed in range(300)])
def test_a_model_that_drafts_keeps_in_step_and_frees_its_blocks(seed: int):
    """It is the same model, so its drafts are right unless its cache is wrong."""
    random = Random(seed)
    smaller = FakeBackend(max_rows=random.choice((1, 7, 64, 512)), sure=True)
    drafter = ModelDrafter(smaller, random.choice((1, 4, 20, 60)))
    schedule = Schedule(seed, Speculation(drafter, random.choice((1, 3, 8, 40)), row_cost=0.001))
    schedule.run()
    stats = schedule.engine.stats
    assert stats.accepted_tokens == stats.drafted_tokens
    cache = drafter._cache
    cache.tree.check_integrity()
    while cache.tree.evict():
        pass
    for pool in cache.pools:
        pool.check_integrity()
        assert pool.free == pool.total


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed{seed}-") for seed in range(300)])
def test_any_schedule_does_so_while_blocks_are_filled_and_read_from_elsewhere(seed: int):
    random = Random(seed)
    drafter = FakeDrafter(random, right=0.7, silent=0.2)
    speculation = Speculation(drafter, 8, row_cost=0.001) if random.random() < 0.3 else None
    schedule = Schedule(seed, speculation, transfers=True)
    schedule.run()
    assert len(schedule.engine.transfers) == 0


class Schedule:
    """One engine under random requests, cancels and finishes."""

    def __init__(self, seed: int, speculation: Speculation | None = None, *, transfers: bool = False):
        """`transfers`: some requests import, export, or do nothing but prefill."""
        self.random = random = Random(seed)
        self.backend = FakeBackend(groups=random.choice((1, 1, 1, 2)))
        self.longest = random.choice((12, 40, 200))
        self.outputs = random.choice((1, 6, 30, 60))
        blocks = -(-(self.longest + self.outputs - 1) // BLOCK_TOKENS)
        pinnable = random.choice((0, 0, 1, 5))
        self.engine = Engine(
            self.backend,
            EngineConfig(
                cache_blocks=blocks + pinnable + random.choice((0, 0, 1, 2, 4, 8, 40)),
                max_batch_tokens=random.choice((1, 4, 8, 20, 64, 512)),
                max_running=random.choice((1, 3, 8, 8)),
                prefill_chunk=random.choice((None, None, 1, 5, 16, 50)),
                max_pinned_blocks=pinnable,
            ),
            speculation,
        )
        self.prefixes = [self._tokens(random.randint(1, self.longest)) for _ in range(random.randint(1, 4))]
        self.requests: dict[str, Request] = {}
        self.answers: dict[str, tuple[int, ...]] = {}
        self.open: list[str] = []
        self.pinned: set[tuple[PrefixNamespace, tuple[int, ...]]] = set()
        self.transfers = FakeTransfers(self.engine, self.backend, random) if transfers else None

    def run(self) -> None:
        random, to_come = self.random, self.random.randint(2, 20)
        burst = random.choice((1, 4, 8))
        while to_come or self.engine.has_work:
            if to_come and (random.random() < 0.5 or not self.engine.has_work):
                for _ in range(min(to_come, random.randint(1, burst))):
                    to_come -= 1
                    self._add()
            self._disturb()
            self._pin_or_unpin()
            self._transfer()
            self._step()
        assert not self.open, "a request never ended"
        self._check_end()

    def _tokens(self, count: int) -> list[int]:
        letters = self.random.choice((2, VOCAB))  # few letters: prompts that meet by chance
        return [self.random.randrange(letters) for _ in range(count)]

    def _add(self) -> None:
        random = self.random
        prefix = random.choice(self.prefixes)
        known = list(prefix)
        if self.answers and random.random() < 0.3:  # the next turn of a conversation
            turn = random.choice(sorted(self.answers))
            known = [*self.requests[turn].prompt, *self.answers[turn]]
        kept = random.choice((len(known), random.randint(0, len(known))))
        prompt = [*known[:kept], *self._tokens(random.choice((0, 1, random.randint(0, self.longest))))]
        prompt = prompt[: self.longest] or [0]
        name = f"r{len(self.requests)}"
        penalized = random.random() < 0.1
        stops = self._tokens(40) if random.random() < 0.2 else []
        request = Request(
            name,
            tuple(prompt),
            random.randint(1, self.outputs),
            PrefixNamespace("model", salt=random.choice(("", "", "", "other"))),
            SamplingParams(seed=random.randrange(3), presence_penalty=0.5 if penalized else 0.0),
            stop_token_ids=frozenset(stops),
            priority=random.choice((0, 0, 0, 1, 2)),
            use_prefix_cache=random.random() < 0.9,
        )
        if self.transfers:
            request = self._vary(request)
            length = request.max_tokens
            answer = expected_tokens(prompt, length, request.sampling.seed, penalized=penalized)
            self.transfers.expect(request, (*prompt, *answer))
        self.engine.add(request)
        self.requests[name] = request
        self.answers[name] = ()
        self.open.append(name)

    def _vary(self, request: Request) -> Request:
        random = self.random
        only = random.random() < 0.2
        return replace(
            request,
            importing=random.random() < 0.4,
            exporting=random.random() < (0.8 if only else 0.2),
            prefill_only=only,
            max_tokens=0 if only else request.max_tokens,
        )

    def _transfer(self) -> None:
        if self.transfers:
            self.transfers.move()

    def _disturb(self) -> None:
        """Now and then cancel or finish a request, preferably one that others follow."""
        while self.open and self.random.random() < 0.04:
            leaders = {seq.leader.request.id for seq in self.engine.scheduler.running if seq.leader}
            choice = sorted(leaders & set(self.open)) if self.random.random() < 0.5 else []
            name = self.random.choice(choice or self.open)
            self.open.remove(name)
            assert self.random.choice((self.engine.cancel, self.engine.finish))(name)
            assert not self.engine.cancel(name)

    def _pin_or_unpin(self) -> None:
        """Now and then pin the prompt of a request, whether it has ended or not, or take a pin back."""
        pins = self.engine.cache.pins
        if not pins.limit or self.random.random() > 0.2:
            return
        if self.pinned and self.random.random() < 0.4:
            pinned = self.random.choice(sorted(self.pinned))
            self.pinned.remove(pinned)
            assert pins.unpin(*pinned)
        elif self.requests:
            request = self.requests[self.random.choice(sorted(self.requests))]
            prompt = request.prompt[: len(request.prompt) // BLOCK_TOKENS * BLOCK_TOKENS]
            with suppress(RequestError):
                if pins.pin(request.namespace, prompt):
                    self.pinned.add((request.namespace, prompt))

    def _step(self) -> None:
        scheduler = self.engine.scheduler
        arrived = set(scheduler.waiting)
        decoding = [
            seq for seq in scheduler.running if seq.started and seq.pending == 1 and not seq.importing
        ]
        if not self.engine.submit():
            waits = len(self.engine.transfers) > 0
            assert waits or not self.engine.has_work, "work was left but nothing was scheduled"
            return
        self._check_order(arrived)
        self._check_plan(decoding)
        self._check_blocks()
        self._disturb()
        self._transfer()
        for output in self.engine.collect():
            self._take(output)
        self.engine.observe(0.0, self.random.uniform(0.01, 0.02))
        self._check_blocks()
        for seq in scheduler.running:
            if seq.started:
                known = max(seq.computed, seq.prefill_end)
                assert len(seq.tables[0]) == blocks_for(known), "blocks of drafted tokens were kept"

    def _take(self, output: Output) -> None:
        name = output.id
        assert name in self.open, "an ended request was reported"
        request = self.requests[name]
        self.answers[name] += output.token_ids
        answer = self.answers[name]
        assert output.cached_tokens < len(request.prompt)
        if request.prefill_only:
            self._take_prefilled(output, request)
            return
        stopped = answer[-1] in request.stop_token_ids
        expected = FinishReason.STOP if stopped else None
        if not stopped and len(answer) == request.max_tokens:
            expected = FinishReason.LENGTH
        assert output.finish_reason is expected
        if expected:
            self.open.remove(name)

    def _take_prefilled(self, output: Output, request: Request) -> None:
        assert (output.token_ids, output.finish_reason) == ((), FinishReason.STOP)
        self.open.remove(request.id)
        if request.use_prefix_cache:
            match = self.engine.cache.tree.match(request.namespace, request.prompt, len(request.prompt))
            assert match.length == len(request.prompt), "what was prefilled cannot be found"

    def _check_order(self, arrived: set[Sequence]) -> None:
        scheduler = self.engine.scheduler
        for line in (scheduler.waiting, scheduler.running):
            assert [seq.order for seq in line] == sorted(seq.order for seq in line)
        admitted = [seq.order for seq in scheduler.running if seq in arrived]
        if admitted and scheduler.waiting:
            assert max(admitted) < scheduler.waiting[0].order, "a sequence was overtaken"
        assert len(scheduler.running) <= scheduler.max_running

    def _check_plan(self, decoding: list[Sequence]) -> None:
        plan, chunks = self.backend.plans[-1], self.engine._in_flight
        assert plan.rows <= self.engine.config.max_batch_tokens
        scheduled = {chunk.seq for chunk in chunks}
        for seq in decoding:
            preempted = not seq.started  # and perhaps running again, behind a leader
            assert seq in scheduled or preempted or seq.recalled, "a running stream was stalled"
        for chunk in chunks:
            chunk_limit = self.engine.config.prefill_chunk or plan.rows
            assert chunk.count <= chunk_limit
            assert not chunk.drafts or chunk.start >= chunk.seq.prefill_end
            assert not chunk.seq.importing, "what is not yet there was read"
            assert chunk.seq.leader is None and chunk.start == chunk.seq.computed

    def _check_blocks(self) -> None:
        """Count from scratch who holds which block; compare what is in it with what its holders believe."""
        cache = self.engine.cache
        started = [seq for seq in self.engine.scheduler.running if seq.started]
        loans = [loan.seq for loan in self.engine.transfers._loans.values()]
        started += [seq for seq in loans if seq.status is Status.ENDED]
        assert not any(seq.started for seq in self.engine.scheduler.waiting)
        cache.tree.check_integrity()
        for group, pool in enumerate(cache.pools):
            pool.check_integrity()
            held = Counter(block for seq in started for block in seq.tables[group].view().tolist())
            for node in cache.tree.nodes():
                if node.pins:
                    held[node.blocks[group]] += node.pins
            for block in range(pool.total):
                assert pool.references(block) == held[block]
            assert pool.used == len(held)
        in_flight = {chunk.seq for chunk in self.engine._in_flight}
        for seq in started:
            # A match's tail is copied only when the step computes.
            known = seq.computed if seq not in in_flight else seq.tree_blocks * BLOCK_TOKENS
            self._check_content([table.view() for table in seq.tables], seq.tokens[:known])
            assert (
                seq.computed < len(seq.tokens) + (seq.status is Status.ENDED) and seq.capacity >= seq.computed
            )
            if seq.request.use_prefix_cache and seq not in in_flight:
                assert seq.tree_blocks == seq.computed // BLOCK_TOKENS
        for node in cache.tree.nodes():
            path, above = [], node
            while above.parent is not None:
                path.insert(0, above)
                above = above.parent
            if not node.children and path:
                tables = [np.array([n.blocks[group] for n in path]) for group in range(len(cache.pools))]
                self._check_content(tables, [token for n in path for token in n.tokens])

    def _check_content(self, tables: list[np.ndarray], tokens: list[int]) -> None:
        chains, chain = [], 0
        for token in tokens:
            chain = hash((chain, token)) & (2**62 - 1)
            chains.append(chain)
        for group, table in enumerate(tables):
            assert self.backend.read(group, table, len(tokens)) == (tokens, chains)

    def _check_end(self) -> None:
        for name, answer in self.answers.items():
            request = self.requests[name]
            penalized = request.sampling.uses_history
            expected = expected_tokens(
                request.prompt, len(answer), request.sampling.seed, penalized=penalized
            )
            assert answer == expected, f"{name} got tokens that are not its own"
        cache = self.engine.cache
        for namespace, prompt in self.pinned:
            known = cache.tree.match(namespace, prompt, len(prompt)).length
            assert known >= BLOCK_TOKENS, "a pinned prefix was evicted"
            assert cache.pins.unpin(namespace, prompt)
        assert (len(cache.pins), cache.pins.blocks) == (0, 0)
        stats = self.engine.stats
        assert (stats.waiting, stats.running, stats.blocks_used) == (0, 0, 0)
        while cache.tree.evict():
            cache.tree.check_integrity()
        assert all(pool.free == pool.total for pool in cache.pools)
        assert not list(cache.tree.nodes())
