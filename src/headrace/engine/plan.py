"""Between chunks of sequences and a backend's arrays: builds a step plan, and reads its result back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from headrace.backends.sampling import SAMPLING_DTYPE
from headrace.backends.step import (
    Biases,
    Float32,
    Int32,
    StepPlan,
    StepResult,
    TokenMasks,
    TopLogprobs,
    Yield,
)
from headrace.engine.scheduler import Chunk

_NO_BIASES = np.empty(0, np.int32), np.empty(0, np.float32)


class ChunkResult(NamedTuple):
    """What a step brought for one chunk."""

    chunk: Chunk
    tokens: list[int]
    """What was sampled after the sequence's last token, where the chunk reached it, and each drafted one."""
    logprobs: tuple[TopLogprobs, ...]
    """One for each of `tokens`, where asked."""
    prompt_start: int
    """The first of the prompt positions that yield something, each of the following if anything."""
    logits: Float32 | None = None
    """[n, vocab]"""
    hidden: Float32 | None = None
    """[n, width]"""
    prompt_logprobs: tuple[TopLogprobs, ...] = ()

    @property
    def has_prompt(self) -> bool:
        """Whether prompt positions yielded anything."""
        return self.logits is not None or self.hidden is not None or bool(self.prompt_logprobs)


def build_plan(chunks: Sequence[Chunk], vocab_size: int) -> StepPlan:
    """Flatten the chunks. Nothing in the plan shares memory with what changes before it is collected.

    Masks are left to be filled in by `constraint.fill_masks`.
    """
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
        biases=yields.all_biases(),
        token_masks=yields.all_masks(vocab_size),
        scored=np.array(yields.scored, np.int32) if any(token >= 0 for token in yields.scored) else None,
    )


def read_result(chunks: Sequence[Chunk], result: StepResult) -> Iterator[ChunkResult]:
    """The chunks' parts of the answer to their plan; each must be taken before its sequence advances."""
    tokens = result.tokens.tolist()
    entries = result.logprobs or (None,) * len(tokens)
    row = logits_row = hidden_row = 0
    for chunk in chunks:
        first, last = _prompt_span(chunk)
        count, kind = last - first, chunk.seq.request.prompt_yield
        logits = hidden = None
        prompt_logprobs: tuple[TopLogprobs, ...] = ()
        if count and kind is Yield.LOGITS and result.logits is not None:
            logits = result.logits[logits_row : logits_row + count]
            logits_row += count
        if count and kind is Yield.HIDDEN and result.hidden is not None:
            hidden = result.hidden[hidden_row : hidden_row + count]
            hidden_row += count
        if kind is Yield.SCORE:
            prompt_logprobs = _present(entries[row : row + count])
        row += count
        after = row + (1 + len(chunk.drafts) if chunk.samples else 0)
        sampled, logprobs = tokens[row:after], _present(entries[row:after])
        row = after
        yield ChunkResult(chunk, sampled, logprobs, first, logits, hidden, prompt_logprobs)


def _present(entries: Sequence[TopLogprobs | None]) -> tuple[TopLogprobs, ...]:
    return tuple(entry for entry in entries if entry is not None)


class _Yields:
    """The yielding rows' columns of a plan."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.kinds: list[int] = []
        self.sampling: list[bytes] = []
        self.top_logprobs: list[int] = []
        self.history_starts = [0]
        self.histories: list[Int32] = []
        self.biases: list[tuple[Int32, Float32]] = []
        self.mask_rows: list[int] = []
        self.masks = 0
        self.scored: list[int] = []

    def add(self, chunk: Chunk, first_row: int) -> None:
        """What a chunk yields: its prompt positions first, then a token, one more for each drafted token."""
        request, kind = chunk.seq.request, chunk.seq.request.prompt_yield
        if kind is not None:
            for position in range(*_prompt_span(chunk)):
                scored = request.prompt[position + 1] if kind is Yield.SCORE else -1
                self._add_row(
                    chunk, first_row + position - chunk.start, kind, request.prompt_logprobs, scored=scored
                )
                self.history_starts.append(self.history_starts[-1])
        if chunk.samples:
            row = first_row + chunk.count - 1
            for drafted in range(1 + len(chunk.drafts)):
                biases = chunk.seq.biases_at(chunk.end + drafted)
                self._add_row(chunk, row + drafted, Yield.TOKEN, request.top_logprobs, biases)
                self._add_history(chunk, drafted)

    def all_biases(self) -> Biases | None:
        """None where no row has any."""
        ids, values = [ids for ids, _ in self.biases], [values for _, values in self.biases]
        if not any(map(len, ids)):
            return None
        starts = np.array([0, *accumulate(map(len, ids))], np.int32)
        return Biases(starts, np.concatenate(ids), np.concatenate(values))

    def all_masks(self, vocab_size: int) -> TokenMasks | None:
        """None where no row has one; the bits are not set."""
        if not self.masks:
            return None
        bits = np.empty((self.masks, (vocab_size + 31) // 32), np.uint32)
        return TokenMasks(np.array(self.mask_rows, np.int32), bits)

    def _add_row(
        self,
        chunk: Chunk,
        row: int,
        kind: Yield,
        top_logprobs: int,
        biases: tuple[Int32, Float32] = _NO_BIASES,
        scored: int = -1,
    ) -> None:
        masked = kind is Yield.TOKEN and chunk.seq.request.constraint is not None
        self.rows.append(row)
        self.kinds.append(kind)
        self.sampling.append(chunk.seq.sampling)
        self.top_logprobs.append(top_logprobs)
        self.biases.append(biases)
        self.mask_rows.append(self.masks if masked else -1)
        self.masks += masked
        self.scored.append(scored)

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


def _prompt_span(chunk: Chunk) -> tuple[int, int]:
    """The chunk's prompt positions that yield something which is not yet reported."""
    seq, kind = chunk.seq, chunk.seq.request.prompt_yield
    if kind is None:
        return 0, 0
    end = seq.prompt_length - (kind is Yield.SCORE)  # no token of the prompt follows its last position
    first = max(chunk.start, seq.logits_done)
    return first, max(first, min(chunk.end, end))


def _block_tables(chunks: Sequence[Chunk], group: int) -> Int32:
    """[S, W] the sequences' block tables, filled up with zeros."""
    tables = [chunk.seq.tables[group] for chunk in chunks]
    out = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(out, tables, strict=True):
        row[: table.size] = table.view()
    return out
