"""Drafts from a smaller model of the same vocabulary, for all speculating sequences together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from itertools import count

from headrace.backends.base import Backend
from headrace.engine.kv_cache import KVCache
from headrace.engine.plan import build_plan, read_result
from headrace.engine.scheduler import Chunk
from headrace.engine.sequence import Sequence, blocks_for
from headrace.engine.speculation import Ask, Draft

_GRADES = 8
"""Classes of probability, of equal width."""
_USUAL_ROWS = 16
"""Rows of a sequence up to which a step is as any other; with more it catches up."""


@dataclass(slots=True)
class _Drafting:
    """A draft in the making."""

    mirror: Sequence
    """What the smaller model has of the sequence, in blocks of its own."""
    limit: int
    tokens: list[int] = field(default_factory=list)
    grades: list[int] = field(default_factory=list)
    chance: float = 1.0
    """Of all its tokens, by the smaller model."""

    def add(self, token: int, probability: float) -> None:
        self.mirror.append(token)
        self.tokens.append(token)
        self.grades.append(min(int(_GRADES * probability), _GRADES - 1))
        self.chance *= probability

    def goes_on(self, least_chance: float) -> bool:
        """Whether one more token may be worth its step."""
        ended = bool(self.tokens) and self.tokens[-1] in self.mirror.request.stop_token_ids
        return len(self.tokens) < self.limit and self.chance >= least_chance and not ended


class ModelDrafter:
    """Implements `headrace.engine.speculation.Drafter`. A token's grade is how probable the model holds it.

    The smaller model samples as the request asks, with the same noise: where the two models agree, so do
    their samples. Its steps are ordinary step plans, its cache has a prefix tree of its own. What it drafted
    wrongly is taken back, and tokens that it has not seen are computed, when it drafts next.
    """

    def __init__(self, backend: Backend, cache_blocks: int):
        """`backend` computes the smaller model; its cache gets so many blocks in each group."""
        groups = len(backend.cache_spec.groups)
        backend.allocate_cache([cache_blocks] * groups)
        self.steps = 0
        self._backend = backend
        self._cache = KVCache(groups, cache_blocks)
        self._mirrors: dict[Sequence, Sequence] = {}
        self._arrivals = count()

    def propose(self, asks: Items[Ask], least_chance: float) -> list[Draft]:
        """As the protocol says. A sequence that has too much to catch up for one step drafts another time."""
        self.steps = 0
        if least_chance >= 1:
            return [Draft()] * len(asks)
        drafting: list[_Drafting | None] = []
        budget = self._backend.max_rows
        for ask in asks:
            # Whatever begins has a row in the first step, which makes the copies that it begins with.
            draft = self._begin(ask, asks) if budget > 0 else None
            drafting.append(draft)
            budget -= draft.mirror.pending if draft is not None else 0
        active = [draft for draft in drafting if draft is not None]
        usual = True
        while active:
            chunks = self._chunks(active)
            usual = usual and all(chunk.count <= _USUAL_ROWS for chunk in chunks)
            self._step(chunks, {draft.mirror: draft for draft in active})
            self.steps += 1
            active = [d for d in active if len(d.tokens) == self.steps and d.goes_on(least_chance)]
        if not usual:
            self.steps = -1
        return [Draft(tuple(d.tokens), tuple(d.grades)) if d is not None else Draft() for d in drafting]

    def forget(self, seq: Sequence) -> None:
        mirror = self._mirrors.pop(seq, None)
        if mirror is not None and mirror.started:
            _follow(mirror, seq)
            self._cache.release(mirror)

    def close(self) -> None:
        self._backend.close()

    def _begin(self, ask: Ask, asks: Items[Ask]) -> _Drafting | None:
        """Bring the mirror up to the sequence's tokens and give it blocks; None where those are lacking."""
        mirror = self._mirrors.get(ask.seq)
        if mirror is None:
            request = replace(
                ask.seq.request, top_logprobs=0, prompt_logits=False, prompt_logprobs=-1, constraint=None
            )
            mirror = Sequence(request, next(self._arrivals), len(self._cache.pools))
            self._mirrors[ask.seq] = mirror
        _follow(mirror, ask.seq)
        length = len(mirror.tokens)
        if mirror.started:
            self._cache.commit(mirror, partial=False)
        elif not self._start(mirror, asks):
            return None
        # The last token drafted is not computed.
        held = self._cache.grow_if_available(mirror, length + ask.limit - 1)
        return _Drafting(mirror, held - length + 1) if held >= length else None

    def _start(self, mirror: Sequence, asks: Items[Ask]) -> bool:
        """Begin with what the tree holds, if there are blocks for the rest."""
        needed = blocks_for(len(mirror.tokens))
        if self._cache.available < needed:
            self._release_others({ask.seq for ask in asks})
        if self._cache.available < needed:
            return False
        match = self._cache.match(mirror)
        self._cache.tree.lock(match)
        if self._cache.available < needed - len(match.path):
            match = self._cache.tree.unlock_tail(match)
        self._cache.start(mirror, match)
        return True

    def _release_others(self, asking: set[Sequence]) -> None:
        """Take their blocks from sequences that do not decode now: preempted ones."""
        for seq, mirror in self._mirrors.items():
            if seq not in asking and mirror.started:
                _follow(mirror, seq)
                self._cache.release(mirror)

    def _chunks(self, active: Iterable[_Drafting]) -> list[Chunk]:
        budget = self._backend.max_rows
        chunks = []
        for draft in active:
            rows = min(draft.mirror.pending, budget)
            if rows:
                chunks.append(Chunk(draft.mirror, draft.mirror.computed, rows))
                budget -= rows
        return chunks

    def _step(self, chunks: list[Chunk], drafting: dict[Sequence, _Drafting]) -> None:
        """Compute a step of the smaller model; sequences that it brought to their end have one token more."""
        ticket = self._backend.submit(build_plan(chunks, self._backend.vocab_size))
        for chunk in chunks:
            if chunk.seq.copies:
                self._cache.copied(chunk.seq)
        for part in read_result(chunks, self._backend.collect(ticket)):
            part.chunk.seq.computed = part.chunk.end
            for token, entry in zip(part.tokens, part.logprobs, strict=True):
                drafting[part.chunk.seq].add(token, math.exp(entry.chosen))


def _follow(mirror: Sequence, seq: Sequence) -> None:
    """Give the mirror the tokens of its sequence, keeping what it has computed of all but the last."""
    known = mirror.prompt_length
    for mine, theirs in zip(mirror.tokens[known:], seq.tokens[known:], strict=False):
        if mine != theirs:
            break
        known += 1
    mirror.truncate(known)
    for token in seq.tokens[known:]:
        mirror.append(token)
    # A drafted token that was not verified, and came nonetheless, may be the last: it is computed once more.
    mirror.computed = min(mirror.computed, len(mirror.tokens) - 1)
