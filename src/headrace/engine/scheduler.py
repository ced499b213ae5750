"""The scheduler: which tokens of which sequences the next step computes.

Continuous batching at iteration level (Yu et al., "Orca", 2022), prefill in chunks beside decode under a
token budget (Agrawal et al., "Sarathi-Serve", 2024). A step first gives every decoding sequence its row,
then spends what is left on prefill, in order of (priority, arrival), running and waiting sequences alike. A
waiting sequence starts when blocks for all its known tokens are available; later it grows block by block.
When blocks run out, the last running sequence in that order is preempted: what it has computed stays in the
prefix tree as long as nobody needs the blocks, and it resumes in its old place in the order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from headrace.engine.join import find_leader, is_ahead
from headrace.engine.kv_cache import KVCache
from headrace.engine.prefix_tree import Match
from headrace.engine.sequence import Sequence, Status, blocks_for

_order = attrgetter("order")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence, computed in one step."""

    seq: Sequence
    start: int
    """Position of the first."""
    count: int
    drafts: tuple[int, ...] = ()
    """Drafted tokens to be verified: they follow the sequence's last one, which is in this chunk then."""

    @property
    def end(self) -> int:
        """Position after the last, drafted ones apart."""
        return self.start + self.count

    @property
    def rows(self) -> int:
        """Rows of the step plan."""
        return self.count + len(self.drafts)

    @property
    def samples(self) -> bool:
        """Whether its last row yields the sequence's next token."""
        return self.end == len(self.seq.tokens) and self.seq.request.samples


class Scheduler:
    """Holds the waiting and the running sequences, each in order."""

    def __init__(self, cache: KVCache, max_batch_tokens: int, max_running: int, prefill_chunk: int | None):
        self.cache = cache
        self.max_batch_tokens = max_batch_tokens
        # Every running sequence must have its row in a step when all of them decode.
        self.max_running = min(max_running, max_batch_tokens)
        self.prefill_chunk = prefill_chunk or max_batch_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        """Prompt tokens of requests that have started, and those of them found in the prefix tree."""
        self._budget = 0
        self._chunks: dict[Sequence, Chunk] = {}
        self._no_room: tuple[Sequence, int] | None = None
        """Who found no blocks, and the cache's `releases` then: no use in trying again before they change."""

    def add(self, seq: Sequence) -> None:
        """Queue a sequence that fits in an otherwise empty cache."""
        insort(self.waiting, seq, key=_order)

    def end(self, seq: Sequence) -> None:
        """Forget a sequence and free its blocks, unless a transfer has them.

        No step in flight may use them.
        """
        _remove(self.running if seq.status is Status.RUNNING else self.waiting, seq)
        seq.status = Status.ENDED
        seq.leader = None
        if seq.lent:
            self.cache.commit(seq, partial=True)
        elif seq.started:
            self.cache.release(seq)

    @property
    def budget_left(self) -> int:
        """Tokens by which the step scheduled last could be larger."""
        return self._budget

    def schedule(self) -> list[Chunk]:
        """The next step's chunks; the tokens of the step before must be known. Empty: nothing to run."""
        self._budget = self.max_batch_tokens
        self._chunks = {}
        self._decode()
        self._prefill()
        return list(self._chunks.values())

    def _decode(self) -> None:
        for seq in tuple(self.running):
            if seq.status is not Status.RUNNING or not seq.started or seq.importing or seq.pending != 1:
                continue
            if seq.computed == seq.capacity:
                if not self._make_room(seq, 1):
                    if seq.lent:
                        seq.recalled = True  # it stands still until it can be preempted, or a block is free
                    else:
                        self._preempt(seq)
                    continue
                self.cache.grow(seq, seq.computed + 1)
            self._take(seq)

    def _prefill(self) -> None:
        """Spend the rest of the budget, merging running and waiting sequences in order.

        One that finds no blocks holds back all that would start after it, so that it is not overtaken for
        ever. A sequence started here is never preempted in the same step: later ones come after it.
        """
        running = deque(seq for seq in self.running if seq not in self._chunks)
        no_room, slots = False, True
        while self._budget > 0:
            # A slot that a preemption frees stays free in this step: others have started out of turn by then.
            slots = slots and len(self.running) < self.max_running
            may_admit = self.waiting and slots and not no_room
            if may_admit and (not running or self.waiting[0].order < running[0].order):
                no_room = not self._admit(self.waiting[0])
                continue
            if not running:
                break
            seq = running.popleft()
            if seq.status is not Status.RUNNING:
                continue  # preempted by one before it
            if seq.started:
                self._take(seq)
            elif seq.leader is not None and is_ahead(seq.leader, seq.shared):
                # The leader computes in the follower's place, so no one between the two holds both back.
                self._take(seq.leader)
            elif not no_room and not self._start(seq):
                self._move_to_waiting(seq)
                no_room = True

    def _admit(self, seq: Sequence) -> bool:
        if not self._start(seq):
            return False
        _remove(self.waiting, seq)
        insort(self.running, seq, key=_order)
        seq.status = Status.RUNNING
        return True

    def _start(self, seq: Sequence) -> bool:
        """Let a sequence without blocks begin, or wait for a leader; False where blocks are lacking."""
        if self._no_room == (seq, self.cache.releases):
            return False
        match = self.cache.match(seq)
        found = find_leader(seq, match.length, self.running)
        seq.leader, seq.shared = found or (None, 0)
        if seq.leader is not None:
            self._take(seq.leader)
            return True
        if seq.importing:  # the block that the tail would be copied into is written from elsewhere
            match = Match(match.path)
        self.cache.tree.lock(match)
        needed = blocks_for(len(seq.tokens)) - len(match.path)
        if not self._make_room(seq, needed):
            match = self.cache.tree.unlock_tail(match)  # the very block it would be copied from may be needed
            if not self._make_room(seq, needed):
                self.cache.tree.unlock(match.path[-1] if match.path else None)
                self._no_room = seq, self.cache.releases
                return False
        self.cache.start(seq, match)
        if seq.cached_tokens is None:
            seq.cached_tokens = min(match.length, seq.prompt_length)
            self.prompt_tokens += seq.prompt_length
            self.cached_tokens += seq.cached_tokens
        self._take(seq)
        return True

    def _take(self, seq: Sequence) -> None:
        """Schedule as many of the sequence's tokens as fit."""
        if seq.importing:
            return
        room = seq.capacity - seq.computed  # less than is pending only where a block on loan is waited for
        count = min(seq.pending, room, self.prefill_chunk, self._budget)
        if count > 0 and seq not in self._chunks:
            self._chunks[seq] = Chunk(seq, seq.computed, count)
            self._budget -= count

    def _make_room(self, seq: Sequence, blocks: int) -> bool:
        """Preempt sequences after `seq` until so many blocks are available; none if that cannot be enough.

        Blocks on loan are only asked for, where they would do.
        """
        lacking = blocks - self.cache.available
        if lacking <= 0:
            return True
        later = [other for other in self.running if other.order > seq.order and other.started]
        victims = [other for other in later if not other.lent]
        if _blocks(victims) < lacking:
            if _blocks(later) >= lacking:
                for other in later:
                    other.recalled = other.lent
            return False
        while victims and self.cache.available < blocks:
            self._preempt(victims.pop())
        return self.cache.available >= blocks

    def _preempt(self, seq: Sequence) -> None:
        chunk = self._chunks.pop(seq, None)
        self._budget += chunk.count if chunk else 0
        self.cache.release(seq)
        self._move_to_waiting(seq)
        self.preemptions += 1

    def _move_to_waiting(self, seq: Sequence) -> None:
        _remove(self.running, seq)
        insort(self.waiting, seq, key=_order)
        seq.status = Status.WAITING


def _blocks(sequences: Iterable[Sequence]) -> int:
    """How many they hold, of each group; shared ones are counted for every one of them."""
    return sum(len(seq.tables[0]) for seq in sequences)


def _remove(line: list[Sequence], seq: Sequence) -> None:
    index = bisect_left(line, seq.order, key=_order)
    assert line[index] is seq
    del line[index]
