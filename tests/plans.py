"""Builds step plans for tests of backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from headrace.backends.base import Backend
from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.sampling import SAMPLING_DTYPE, SamplingParams
from headrace.backends.step import Biases, BlockCopy, Float32, StepPlan, TokenMasks, Yield


@dataclass(frozen=True)
class Rows:
    """Neighbouring tokens of one sequence, the first at position `start`, and what they yield."""

    tokens: Sequence[int]
    table: Sequence[int]
    start: int = 0
    kind: Yield = Yield.LOGITS
    yielding: Literal["all", "last", "none"] = "all"
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0))
    top_logprobs: int = -1
    history: Sequence[int] = ()
    biases: Mapping[int, float] = field(default_factory=dict)
    scored: Sequence[int] = ()

    @property
    def yield_rows(self) -> list[int]:
        count = len(self.tokens)
        return {"all": list(range(count)), "last": [count - 1], "none": []}[self.yielding]


def step_plan(
    *batch: Rows, copies: Sequence[BlockCopy] = (), token_masks: TokenMasks | None = None
) -> StepPlan:
    """One step of these sequences in this order."""
    starts = np.cumsum([0, *(len(rows.tokens) for rows in batch)], dtype=np.int32)
    yielding = [
        (rows, int(start), i) for rows, start in zip(batch, starts, strict=False) for i in rows.yield_rows
    ]
    sampling = np.zeros(len(yielding), SAMPLING_DTYPE)
    for y, (rows, _, i) in enumerate(yielding):
        sampling[y] = rows.sampling.record()[0]
        sampling[y]["position"] = rows.start + i
    # Entries past a sequence's last block are ignored, so they hold what would fail if read.
    tables = np.full((len(batch), max(len(rows.table) for rows in batch)), -1, np.int32)
    for table, rows in zip(tables, batch, strict=True):
        table[: len(rows.table)] = rows.table
    return StepPlan(
        tokens=np.array([token for rows in batch for token in rows.tokens], np.int32),
        positions=np.array([rows.start + i for rows in batch for i in range(len(rows.tokens))], np.int32),
        sequence_starts=starts,
        block_tables=(tables,),
        yield_rows=np.array([start + i for _, start, i in yielding], np.int32),
        yield_kinds=np.array([rows.kind for rows, _, _ in yielding], np.uint8),
        sampling=sampling,
        top_logprobs=np.array([rows.top_logprobs for rows, _, _ in yielding], np.int32),
        history_starts=np.cumsum([0, *(len(rows.history) for rows, _, _ in yielding)], dtype=np.int32),
        history=np.array([token for rows, _, _ in yielding for token in rows.history], np.int32),
        copies=tuple(copies),
        biases=_biases(batch),
        token_masks=token_masks,
        scored=_scored(batch),
    )


def _biases(batch: Sequence[Rows]) -> Biases | None:
    if not any(rows.biases for rows in batch):
        return None
    each = [rows.biases for rows in batch for _ in rows.yield_rows]
    return Biases(
        np.cumsum([0, *map(len, each)], dtype=np.int32),
        np.array([token for biases in each for token in biases], np.int32),
        np.array([value for biases in each for value in biases.values()], np.float32),
    )


def _scored(batch: Sequence[Rows]) -> np.ndarray | None:
    if not any(rows.scored for rows in batch):
        return None
    each = [rows.scored or [-1] * len(rows.tokens) for rows in batch]
    return np.array(
        [own[i] for rows, own in zip(batch, each, strict=True) for i in rows.yield_rows], np.int32
    )


def blocks_for(tokens: int, first: int = 0) -> list[int]:
    """A block table that holds this many tokens in consecutive blocks."""
    return list(range(first, first + -(-tokens // BLOCK_TOKENS)))


def teacher_forced(
    backend: Backend, tokens: Sequence[int], *, table: Sequence[int] | None = None, chunk: int | None = None
) -> Float32:
    """[len(tokens), vocab] logits of every position, computed in chunks of this many tokens."""
    table = blocks_for(len(tokens)) if table is None else table
    chunk = chunk or backend.max_rows
    parts = []
    for start in range(0, len(tokens), chunk):
        plan = step_plan(Rows(tokens[start : start + chunk], table, start))
        logits = backend.collect(backend.submit(plan)).logits
        assert logits is not None
        parts.append(logits)
    return np.concatenate(parts)
