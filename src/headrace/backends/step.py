"""The step plan: everything a backend needs to know to compute one step, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.backends.sampling import SamplingRecords

Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]
UInt32 = NDArray[np.uint32]
Float32 = NDArray[np.float32]


class Yield(IntEnum):
    """What a row gives back. Rows not listed in a plan's `yield_rows` only fill the cache."""

    TOKEN = 1
    LOGITS = 2
    HIDDEN = 3
    SCORE = 4
    """The log-probability of a token that is known already."""


class BlockCopy(NamedTuple):
    """Copy the first `tokens` tokens of block `source` to block `target`, before the step computes."""

    group: int
    source: int
    target: int
    tokens: int


class Biases(NamedTuple):
    """Addends to logits, for each of a plan's yielding rows."""

    starts: Int32
    """[Y+1] those of yielding row y are ids[starts[y]:starts[y+1]], and the values there."""
    ids: Int32
    """Tokens, distinct within a row."""
    values: Float32
    """Finite, or minus infinity, which forbids the token."""


class TokenMasks(NamedTuple):
    """Which tokens may be sampled. A mask depends on the tokens of the step before, and takes a while.

    So the bits are computed while the step is, and only they may still change after `submit`.
    """

    rows: Int32
    """[Y] the mask of each yielding row, -1 where every token is allowed."""
    bits: UInt32
    """[masks, ceil(vocab/32)] bit t % 32 of word t // 32 is set: token t is allowed, as at least one is."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The flattened batch of one step: T rows (one token each) of S sequences, Y of which yield.

    The rows of a sequence are neighbours and their positions ascend by one. A row attends to positions
    0 … its own, found through its sequence's block table; the step writes the rows' own keys and values
    before any row reads them.
    """

    tokens: Int32
    """[T] token ids."""
    positions: Int32
    """[T] position of each row in its sequence."""
    sequence_starts: Int32
    """[S+1] rows of sequence s are sequence_starts[s] up to sequence_starts[s+1]."""
    block_tables: tuple[Int32, ...]
    """For each cache group, [S, W] block ids; entries past a sequence's last block are ignored."""
    yield_rows: Int32
    """[Y] ascending row numbers; a row that yields both logits and a token is listed twice in a row."""
    yield_kinds: UInt8
    """[Y] of `Yield`."""
    sampling: SamplingRecords
    """[Y] of SAMPLING_DTYPE; ignored unless the row yields a token."""
    top_logprobs: Int32
    """[Y] -1: no log-probabilities; n >= 0: the chosen (or scored) token's and the n largest."""
    history_starts: Int32
    """[Y+1] the history of yielding row y is history[history_starts[y]:history_starts[y+1]]."""
    history: Int32
    """Prompt and output tokens of rows whose sampling uses them, output tokens stored as -1 - id."""
    copies: tuple[BlockCopy, ...] = ()
    biases: Biases | None = None
    token_masks: TokenMasks | None = None
    scored: Int32 | None = None
    """[Y] the token that a row of kind SCORE scores; ignored for others. None: no such row."""
    draft_lengths: Int32 | None = None
    """[S] how many of the sequence's last rows are drafted tokens to verify. None: no drafts."""
    adapters: Int32 | None = None
    """[S] adapter of each sequence. None: the plain model."""

    @property
    def rows(self) -> int:
        """T."""
        return len(self.tokens)


class TopLogprobs(NamedTuple):
    """Log-probabilities (natural logarithm) under the unmodified distribution."""

    chosen: float
    token_ids: Int32
    """[n] by descending probability."""
    logprobs: Float32
    """[n]"""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to a plan, in the order of its yielding rows."""

    tokens: Int32
    """[Y] sampled token ids, -1 for rows that yield something else."""
    logprobs: tuple[TopLogprobs | None, ...] | None = None
    """[Y] where any row asked, as one of kind SCORE always does, else None."""
    logits: Float32 | None = None
    """[rows of kind LOGITS, vocab]"""
    hidden: Float32 | None = None
    """[rows of kind HIDDEN, embedding length], after the final norm."""
