"""The NumPy reference: runs a graph op by op in float32 over dequantised weights. Slow, short, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.backends.base import Backend, Ticket
from headrace.backends.cache import BLOCK_TOKENS, CacheGroup, CacheSpec
from headrace.backends.fingerprint import Fingerprint
from headrace.backends.reference_sampler import largest, log_softmax, sample
from headrace.backends.step import BlockCopy, Float32, Int32, StepPlan, StepResult, TopLogprobs, Yield
from headrace.models.architectures import build_graph
from headrace.models.check import check_tensors
from headrace.models.config import ModelConfig
from headrace.models.graph import Add, Attention, Embed, Linear, Op, RmsNorm, Rope, SwiGlu, Value
from headrace.models.quants import dequantize, dequantize_rows
from headrace.models.weights import Weights

_INPUTS = ("x", "a", "b", "gate", "up", "query", "key", "value")
"""The fields in which ops name the values they read."""


class ReferenceBackend(Backend):
    """Computes a step within `submit`, but for its samples, as token masks may come later.

    Weights are dequantised when first read, and kept as float32.

    A cache block is an array [keys and values, layer, token, head, element]; unwritten tokens are NaN, so
    that reading one shows.
    """

    def __init__(self, weights: Weights, *, cache_dtype: str = "f32", max_rows: int = 512) -> None:
        """`cache_dtype` is f16 or f32. Raises ModelFileError for a model that cannot run."""
        config = ModelConfig.from_weights(weights)
        graph = build_graph(config, weights)
        check_tensors(graph, config, weights)
        group = CacheGroup("all", tuple(range(config.layers)), config.kv_heads, config.head_dim, cache_dtype)
        self._spec = CacheSpec((group,), "reference")
        self._config, self._graph, self._weights = config, graph, weights
        self._max_rows = max_rows
        # The ops after the hidden state run only for rows that yield logits or a token.
        split = next(i for i, op in enumerate(graph.ops) if op.out == graph.hidden) + 1
        self._body, self._head = graph.ops[:split], graph.ops[split:]
        self._dense: dict[str, Float32] = {}
        self._cache = _empty_blocks(group, 0)
        self._in_flight: dict[Ticket, tuple[StepPlan, Float32, Float32]] = {}
        self._steps = 0

    @property
    def cache_spec(self) -> CacheSpec:
        return self._spec

    @property
    def fingerprint(self) -> Fingerprint:
        group = self._spec.groups[0]
        return Fingerprint(self._weights.digest(), self._spec.layout, "numpy", group.dtype)

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def max_rows(self) -> int:
        return self._max_rows

    @property
    def page_cache_bytes(self) -> int:
        return 0

    def allocate_cache(self, blocks: Sequence[int]) -> None:
        (count,) = blocks
        self._cache = _empty_blocks(self._spec.groups[0], count)

    def submit(self, plan: StepPlan) -> Ticket:
        assert not self._in_flight, "one step is in flight at a time"
        assert 0 < plan.rows <= self._max_rows
        assert plan.tokens.min() >= 0 and plan.tokens.max() < self.vocab_size, "no such token"
        assert plan.draft_lengths is None and plan.adapters is None, "drafts and adapters are not computed"
        for copy in plan.copies:
            self._copy(copy)
        hidden = self._run(self._body, {}, plan)
        self._steps += 1
        ticket = Ticket(self._steps)
        yielded = hidden[plan.yield_rows]
        self._in_flight[ticket] = plan, yielded, self._logits(plan, yielded)
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        plan, hidden, logits = self._in_flight.pop(ticket)
        kinds = plan.yield_kinds
        tokens: Int32 = np.full(len(kinds), -1, np.int32)
        logprobs: list[TopLogprobs | None] = [None] * len(kinds)
        for y, row in zip(np.flatnonzero(kinds != Yield.HIDDEN).tolist(), logits, strict=True):
            known = tokens
            if kinds[y] == Yield.TOKEN:
                tokens[y] = _sample(plan, y, row)
            elif kinds[y] == Yield.SCORE:
                assert plan.scored is not None
                known = plan.scored
            if plan.top_logprobs[y] >= 0 and kinds[y] != Yield.LOGITS:
                logprobs[y] = _top(row, known[y], plan.top_logprobs[y])
        return StepResult(
            tokens,
            tuple(logprobs) if any(logprobs) else None,
            logits[kinds[kinds != Yield.HIDDEN] == Yield.LOGITS] if (kinds == Yield.LOGITS).any() else None,
            hidden[kinds == Yield.HIDDEN] if (kinds == Yield.HIDDEN).any() else None,
        )

    def block_view(self, group: int, block: int) -> memoryview:
        assert group == 0 and 0 <= block < len(self._cache)
        return memoryview(self._cache[block].reshape(-1).view(np.uint8))

    def close(self) -> None:
        self._dense.clear()
        self._cache = _empty_blocks(self._spec.groups[0], 0)

    def _copy(self, copy: BlockCopy) -> None:
        assert copy.group == 0 and 0 <= copy.tokens <= BLOCK_TOKENS
        self._cache[copy.target, :, :, : copy.tokens] = self._cache[copy.source, :, :, : copy.tokens]

    def _weight(self, name: str) -> Float32:
        if name not in self._dense:
            self._dense[name] = dequantize(self._weights.tensor(name))
        return self._dense[name]

    def _run(self, ops: Sequence[Op], values: dict[Value, Float32], plan: StepPlan) -> Float32:
        """The value of the last op. A value is dropped after the last op that reads it."""
        last_reader = {value: i for i, op in enumerate(ops) for value in _inputs(op)}
        for i, op in enumerate(ops):
            values[op.out] = self._apply(op, values, plan)
            for value in set(_inputs(op)):
                if last_reader[value] == i:
                    del values[value]
        return values[ops[-1].out]

    def _apply(self, op: Op, values: dict[Value, Float32], plan: StepPlan) -> Float32:
        match op:
            case Embed():
                return dequantize_rows(self._weights.tensor(op.weight), plan.tokens)
            case RmsNorm():
                return rms_norm(values[op.x], self._weight(op.weight), op.eps)
            case Linear():
                product: Float32 = values[op.x] @ self._weight(op.weight).T
                return product if op.bias is None else product + self._weight(op.bias)
            case Rope():
                factors = None if op.factors is None else self._weight(op.factors)
                return rope(values[op.x], plan.positions, op, factors)
            case Attention():
                return self._attend(op, values, plan)
            case SwiGlu():
                return swiglu(values[op.gate], values[op.up])
            case Add():
                total: Float32 = values[op.a] + values[op.b]
                return total

    def _attend(self, op: Attention, values: dict[Value, Float32], plan: StepPlan) -> Float32:
        """Attention of every sequence in turn, its keys and values read back from the blocks of its table."""
        query = values[op.query].reshape(-1, op.heads, op.head_dim)
        new = np.stack([values[op.key], values[op.value]], axis=1).reshape(-1, 2, op.kv_heads, op.head_dim)
        out = np.empty_like(query)
        # All rows are written before any is read: a sequence may read a block that another one fills.
        spans = [
            slice(*pair) for pair in zip(plan.sequence_starts[:-1], plan.sequence_starts[1:], strict=True)
        ]
        for table, rows in zip(plan.block_tables[0], spans, strict=True):
            block, offset = np.divmod(plan.positions[rows], BLOCK_TOKENS)
            self._cache[self._checked(table[block]), :, op.layer, offset] = new[rows]
        for table, rows in zip(plan.block_tables[0], spans, strict=True):
            positions = plan.positions[rows]
            length = int(positions[-1]) + 1
            blocks = self._checked(table[: -(-length // BLOCK_TOKENS)])
            cached = self._cache[blocks, :, op.layer].swapaxes(0, 1)  # [2, blocks, tokens, heads, elements]
            keys, read = cached.reshape(2, -1, op.kv_heads, op.head_dim)[:, :length].astype(np.float32)
            out[rows] = attention(query[rows], keys, read, positions, op.scale)
        return out.reshape(len(out), -1)

    def _checked(self, blocks: Int32) -> Int32:
        assert ((blocks >= 0) & (blocks < len(self._cache))).all(), f"no such block among {blocks}"
        return blocks

    def _logits(self, plan: StepPlan, hidden: Float32) -> Float32:
        """Of the yielding rows that need them; `hidden` is of all that yield, [Y, embedding]."""
        needed = hidden[plan.yield_kinds != Yield.HIDDEN]
        if not len(needed):
            return np.zeros((0, self.vocab_size), np.float32)
        return self._run(self._head, {self._graph.hidden: needed}, plan)


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """See graph.RmsNorm."""
    out: Float32 = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(eps)) * weight
    return out


def rope(x: Float32, positions: Int32, op: Rope, factors: Float32 | None) -> Float32:
    """See graph.Rope. Angles are float64: at position 30,000 a float32 one is off by 0.001."""
    half = op.dims // 2
    frequency = op.base ** (-np.arange(half, dtype=np.float64) / half)
    if factors is not None:
        frequency = frequency / factors
    angle = positions[:, None, None] * op.scale * frequency
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    out: Float32 = x.reshape(len(x), op.heads, op.head_dim).copy()
    adjacent = op.pairing == "adjacent"
    first = slice(0, op.dims, 2) if adjacent else slice(0, half)
    second = slice(1, op.dims, 2) if adjacent else slice(half, op.dims)
    a, b = out[:, :, first].copy(), out[:, :, second].copy()
    out[:, :, first], out[:, :, second] = a * cos - b * sin, a * sin + b * cos
    return out.reshape(x.shape)


def attention(query: Float32, keys: Float32, values: Float32, positions: Int32, scale: float) -> Float32:
    """See graph.Attention: `query` [rows, heads, size]; `keys` and `values` [context, kv_heads, size]."""
    rows, heads, size = query.shape
    context, kv_heads, _ = keys.shape
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, size).transpose(1, 2, 0, 3)
    scores = (
        grouped @ keys.transpose(1, 2, 0)[:, None] * np.float32(scale)
    )  # [kv_heads, group, rows, context]
    scores[:, :, np.arange(context) > positions[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = weights @ values.transpose(1, 0, 2)[:, None]  # [kv_heads, group, rows, size]
    out: Float32 = mixed.transpose(2, 0, 1, 3).reshape(query.shape)
    return out


def swiglu(gate: Float32, up: Float32) -> Float32:
    """See graph.SwiGlu."""
    with np.errstate(over="ignore"):  # exp(-gate) may be infinite: the quotient is then 0, as it should be
        out: Float32 = gate / (1 + np.exp(-gate)) * up
    return out


def _inputs(op: Op) -> list[Value]:
    return [getattr(op, name) for name in _INPUTS if hasattr(op, name)]


def _empty_blocks(group: CacheGroup, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.floating]]:
    dtype = np.dtype({"f16": np.float16, "f32": np.float32}[group.dtype])
    return np.full((count, 2, len(group.layers), BLOCK_TOKENS, group.kv_heads, group.head_dim), np.nan, dtype)


def _sample(plan: StepPlan, y: int, logits: Float32) -> int:
    history = plan.history[plan.history_starts[y] : plan.history_starts[y + 1]]
    mask = biases = None
    if plan.token_masks is not None and (row := plan.token_masks.rows[y]) >= 0:
        mask = plan.token_masks.bits[row]
    if plan.biases is not None:
        own = slice(*plan.biases.starts[y : y + 2])
        biases = plan.biases.ids[own], plan.biases.values[own]
    return sample(logits, plan.sampling[y], history, mask, biases)


def _top(logits: Float32, chosen: int, count: int) -> TopLogprobs:
    logprobs = log_softmax(logits)
    ids = largest(logits, count)
    return TopLogprobs(float(logprobs[chosen]), ids, logprobs[ids])
