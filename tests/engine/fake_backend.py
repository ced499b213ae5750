"""A backend without a model: a token follows from the cache content that the plan's block tables lead to.

Each slot of a block stores the token written there and a chain value of it and its whole context, as a real
key or value depends on both. A next token is a hash of all that a row can read, so a wrong table, a stale or
wrongly shared block or a missing copy changes tokens. `expected_tokens` is the same function of the prompt
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from headrace.backends.base import Ticket
from headrace.backends.cache import BLOCK_TOKENS, CacheGroup, CacheSpec
from headrace.backends.fingerprint import Fingerprint
from headrace.backends.step import StepPlan, StepResult, TopLogprobs, Yield

VOCAB = 1000


def _chain(before: int, token: int) -> int:
    return hash((before, token)) & (2**62 - 1)


def _next_token(context: list[int], chain: int, seed: int, history: tuple[int, ...]) -> int:
    return hash((tuple(context), chain, seed, len(context) - 1, history)) % VOCAB


def expected_tokens(
    prompt: Sequence[int], count: int, seed: int = 0, *, penalized: bool = False
) -> tuple[int, ...]:
    """What a request of this prompt and seed must be answered, whatever else goes on."""
    context = list(prompt)
    chain = 0
    for token in context:
        chain = _chain(chain, token)
    for _ in range(count):
        history = (*prompt, *(-1 - token for token in context[len(prompt) :])) if penalized else ()
        token = _next_token(context, chain, seed, history)
        context.append(token)
        chain = _chain(chain, token)
    return tuple(context[len(prompt) :])


class FakeBackend:
    """Checks every plan it is given; computes when the step is collected, as late as a real one may."""

    def __init__(self, groups: int = 1, max_rows: int = 4096, *, sure: bool = False):
        """`sure`: every token is reported as certain; else log-probabilities tell which token they are of."""
        spec = tuple(CacheGroup(f"group {g}", (g,), 1, 4) for g in range(groups))
        self.cache_spec = CacheSpec(spec, "fake")
        self.fingerprint = Fingerprint("fake", "fake", "fake", "f32")
        self.vocab_size = VOCAB
        self.max_rows = max_rows
        self._sure = sure
        self.plans: list[StepPlan] = []
        self.tokens: list[np.ndarray] = []
        self.chains: list[np.ndarray] = []
        self._in_flight: tuple[Ticket, StepPlan, bytes] | None = None

    def allocate_cache(self, blocks: Sequence[int]) -> None:
        assert len(blocks) == len(self.cache_spec.groups) and not self.tokens
        self._blocks = [np.full((n, 2, BLOCK_TOKENS), -1, np.int64) for n in blocks]
        self.tokens = [group[:, 0] for group in self._blocks]
        self.chains = [group[:, 1] for group in self._blocks]

    def submit(self, plan: StepPlan) -> Ticket:
        assert self._in_flight is None
        _check_plan(plan, self.max_rows)
        self.plans.append(plan)
        ticket = Ticket(len(self.plans))
        self._in_flight = ticket, plan, _content(plan)
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        assert self._in_flight is not None
        expected, plan, content = self._in_flight
        self._in_flight = None
        assert ticket == expected and content == _content(plan), "the plan changed while it was computed"
        for copy in plan.copies:
            for store in (self.tokens[copy.group], self.chains[copy.group]):
                store[copy.target, : copy.tokens] = store[copy.source, : copy.tokens]
        for seq in range(len(plan.sequence_starts) - 1):
            for group in range(len(self.tokens)):
                self._write(plan, seq, group)
        return self._answer(plan)

    def block_view(self, group: int, block: int) -> memoryview:
        return memoryview(self._blocks[group][block].reshape(-1).view(np.uint8))

    def close(self) -> None:
        pass

    def read(self, group: int, table: np.ndarray, count: int) -> tuple[list[int], list[int]]:
        """Tokens and chain values of the first `count` tokens in the blocks of a table."""
        return (
            self.tokens[group][table].reshape(-1)[:count].tolist(),
            self.chains[group][table].reshape(-1)[:count].tolist(),
        )

    def _write(self, plan: StepPlan, seq: int, group: int) -> None:
        start, end = plan.sequence_starts[seq : seq + 2].tolist()
        table = plan.block_tables[group][seq]
        for row in range(start, end):
            token, position = int(plan.tokens[row]), int(plan.positions[row])
            before = 0
            if position:
                block, slot = table[(position - 1) // BLOCK_TOKENS], (position - 1) % BLOCK_TOKENS
                before = int(self.chains[group][block, slot])
            block, slot = table[position // BLOCK_TOKENS], position % BLOCK_TOKENS
            self.tokens[group][block, slot] = token
            self.chains[group][block, slot] = _chain(before, token)

    def _answer(self, plan: StepPlan) -> StepResult:
        tokens, logprobs, logits = [], [], []
        for y, row in enumerate(plan.yield_rows.tolist()):
            position = int(plan.positions[row])
            seq = int(np.searchsorted(plan.sequence_starts, row, side="right")) - 1
            reads = [
                self.read(group, tables[seq], position + 1) for group, tables in enumerate(plan.block_tables)
            ]
            assert all(read == reads[0] for read in reads), "cache groups disagree"
            context, chain = reads[0]
            if plan.yield_kinds[y] == Yield.LOGITS:
                logits.append(np.full(VOCAB, position, np.float32))
                tokens.append(-1)
                logprobs.append(None)
                continue
            assert plan.sampling["position"][y] == position
            first, last = plan.history_starts[y : y + 2].tolist()
            history = tuple(plan.history[first:last].tolist())
            seed = int(plan.sampling["seed"][y])
            tokens.append(_next_token(context, chain[-1], seed, history))
            n = int(plan.top_logprobs[y])
            chosen = 0.0 if self._sure else -float(tokens[-1])
            logprobs.append(
                TopLogprobs(chosen, np.arange(n, dtype=np.int32), np.zeros(n, np.float32)) if n >= 0 else None
            )
        return StepResult(
            tokens=np.array(tokens, np.int32),
            logprobs=tuple(logprobs) if any(logprobs) else None,
            logits=np.stack(logits) if logits else None,
        )


def _content(plan: StepPlan) -> bytes:
    arrays = (plan.tokens, plan.positions, plan.yield_rows, plan.sampling, plan.history, *plan.block_tables)
    return b"".join(array.tobytes() for array in arrays)


def _check_plan(plan: StepPlan, max_rows: int) -> None:
    """What a backend may rely on, beyond the shapes."""
    starts = plan.sequence_starts.tolist()
    assert 0 < plan.rows <= max_rows and starts[0] == 0 and starts[-1] == plan.rows
    assert len(plan.yield_rows) == len(plan.yield_kinds) == len(plan.sampling) == len(plan.top_logprobs)
    assert len(plan.history_starts) == len(plan.yield_rows) + 1
    listed = list(zip(plan.yield_rows.tolist(), plan.yield_kinds.tolist(), strict=True))
    assert len(set(listed)) == len(listed)
    assert [row for row, _ in listed] == sorted(row for row, _ in listed)
    for group, tables in enumerate(plan.block_tables):
        written: set[int] = set()
        read: list[set[int]] = []
        for seq, (start, end) in enumerate(pairwise(starts)):
            positions = plan.positions[start:end].tolist()
            assert positions == list(range(positions[0], positions[0] + end - start)) and end > start
            blocks = tables[seq, : positions[-1] // BLOCK_TOKENS + 1].tolist()
            assert len(set(blocks)) == len(blocks)
            own = set(blocks[positions[0] // BLOCK_TOKENS :])
            assert not own & written, "two sequences write one block"
            written |= own
            read.append(set(blocks[: positions[0] // BLOCK_TOKENS]))
        assert not any(written & blocks for blocks in read), "a block is written while another reads it"
        copies = [copy for copy in plan.copies if copy.group == group]
        targets = [copy.target for copy in copies]
        assert len(set(targets)) == len(targets) and not set(targets) & {copy.source for copy in copies}
