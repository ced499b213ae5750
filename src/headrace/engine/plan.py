"""Between chunks of sequences and a backend's arrays: builds a step plan, and reads its result back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from headrace.backends.sampling import SAMPLING_DTYPE
from headrace.backends.step import Float32, Int32, StepPlan, StepResult, TopLogprobs, Yield
from headrace.engine.scheduler import Chunk


class ChunkResult(NamedTuple):
    """What a step brought for one chunk."""

    chunk: Chunk
    tokens: list[int]
    """What was sampled after the sequence's last token, where the chunk reached it, and each drafted one."""
    logprobs: tuple[TopLogprobs, ...]
    """One for each of `tokens`, where asked."""
    logits: Float32 | None
    """[n, vocab] of the prompt positions from `logits_start` on."""
    logits_start: int


def build_plan(chunks: Sequence[Chunk]) -> StepPlan:
    """Flatten the chunks. Nothing in the plan shares memory with what changes before it is collected."""
    tokens: list[int] = []
    positions: list[int] = []
    yields = _Yields()
    for chunk in chunks:
        seq = chunk.seq
        if chunk.rows == 1:
            tokens.append(seq.tokens[chunk.start])
            positions.append(chunk.start)
        else:
            tokens += seq.tokens[chunk.start : chunk.end]
            tokens += chunk.drafts
            positions += range(chunk.start, chunk.start + chunk.rows)
        yields.add(chunk, len(tokens) - chunk.rows)
    position_array = np.array(positions, np.int32)
    yield_rows = np.array(yields.rows, np.int32)
    sampling = np.frombuffer(bytearray().join(yields.sampling), SAMPLING_DTYPE)
    sampling["position"] = position_array[yield_rows]
    return StepPlan(
        tokens=np.array(tokens, np.int32),
        positions=position_array,
        sequence_starts=np.array([0, *accumulate(chunk.rows for chunk in chunks)], np.int32),
        block_tables=tuple(_block_tables(chunks, group) for group in range(len(chunks[0].seq.tables))),
        yield_rows=yield_rows,
        yield_kinds=np.array(yields.kinds, np.uint8),
        sampling=sampling,
        top_logprobs=np.array(yields.top_logprobs, np.int32),
        history_starts=np.array(yields.history_starts, np.int32),
        history=np.concatenate(yields.histories) if yields.histories else np.empty(0, np.int32),
        copies=tuple(copy for chunk in chunks for copy in chunk.seq.copies),
    )


def read_result(chunks: Sequence[Chunk], result: StepResult) -> Iterator[ChunkResult]:
    """The chunks' parts of the answer to their plan; each must be taken before its sequence advances."""
    tokens = result.tokens.tolist()
    row = logits_row = 0
    for chunk in chunks:
        sampled: list[int] = []
        logprobs: tuple[TopLogprobs, ...] = ()
        logits = None
        first, last = _logits_span(chunk)
        if last > first:
            assert result.logits is not None
            logits = result.logits[logits_row : logits_row + last - first]
            logits_row += last - first
            row += last - first
        if _samples(chunk):
            after = row + 1 + len(chunk.drafts)
            sampled = tokens[row:after]
            if result.logprobs is not None and chunk.seq.request.top_logprobs >= 0:
                logprobs = tuple(entry for entry in result.logprobs[row:after] if entry is not None)
            row = after
        yield ChunkResult(chunk, sampled, logprobs, logits, first)


class _Yields:
    """The yielding rows' columns of a plan."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.kinds: list[int] = []
        self.sampling: list[bytes] = []
        self.top_logprobs: list[int] = []
        self.history_starts = [0]
        self.histories: list[Int32] = []

    def add(self, chunk: Chunk, first_row: int) -> None:
        """What a chunk yields: prompt logits first, then a token, and one more for each drafted token."""
        first, last = _logits_span(chunk)
        for position in range(first, last):
            self._add_row(chunk, first_row + position - chunk.start, Yield.LOGITS, -1)
            self.history_starts.append(self.history_starts[-1])
        if _samples(chunk):
            row = first_row + chunk.count - 1
            for drafted in range(1 + len(chunk.drafts)):
                self._add_row(chunk, row + drafted, Yield.TOKEN, chunk.seq.request.top_logprobs)
                self._add_history(chunk, drafted)

    def _add_row(self, chunk: Chunk, row: int, kind: Yield, top_logprobs: int) -> None:
        self.rows.append(row)
        self.kinds.append(kind)
        self.sampling.append(chunk.seq.sampling)
        self.top_logprobs.append(top_logprobs)

    def _add_history(self, chunk: Chunk, drafted: int) -> None:
        """The sequence's tokens, and the first so many drafted ones: all before the token to be sampled."""
        added = 0
        history = chunk.seq.history
        if history is not None:
            self.histories.append(history.view())
            added = len(history) + drafted
            if drafted:
                self.histories.append(-1 - np.array(chunk.drafts[:drafted], np.int32))
        self.history_starts.append(self.history_starts[-1] + added)


def _samples(chunk: Chunk) -> bool:
    """Whether the chunk's last row yields the sequence's next token."""
    return chunk.end == len(chunk.seq.tokens)


def _logits_span(chunk: Chunk) -> tuple[int, int]:
    """The chunk's prompt positions whose logits are wanted and not yet reported."""
    seq = chunk.seq
    if not seq.request.prompt_logits:
        return 0, 0
    return max(chunk.start, seq.logits_done), min(chunk.end, seq.prompt_length)


def _block_tables(chunks: Sequence[Chunk], group: int) -> Int32:
    """[S, W] the sequences' block tables, filled up with zeros."""
    tables = [chunk.seq.tables[group] for chunk in chunks]
    out = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(out, tables, strict=True):
        row[: table.size] = table.view()
    return out
