"""A request on its way: the tokens it has, how far they are computed, and the blocks that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import numpy as np

from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.step import BlockCopy, Float32, Int32
from headrace.engine.prefix_tree import Match, Node
from headrace.engine.request import FinishReason, Request


class IntArray:
    """int32 numbers, appended one at a time to a NumPy array that grows by doubling."""

    __slots__ = ("_data", "size")

    def __init__(self, values: tuple[int, ...] = ()):
        self._data: Int32 = np.empty(max(16, len(values)), np.int32)
        self._data[: len(values)] = values
        self.size = len(values)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return int(self._data[: self.size][index])

    def __setitem__(self, index: int, value: int) -> None:
        self._data[: self.size][index] = value

    def append(self, value: int) -> None:
        if self.size == len(self._data):
            grown = np.empty(2 * self.size, np.int32)
            grown[: self.size] = self._data
            self._data = grown
        self._data[self.size] = value
        self.size += 1

    def truncate(self, size: int) -> None:
        """Keep the first so many."""
        assert size <= self.size
        self.size = size

    def view(self) -> Int32:
        """The numbers, [size], sharing memory."""
        return self._data[: self.size]


class Status(Enum):
    """Where a sequence is. A preempted one is waiting again."""

    WAITING = 1
    RUNNING = 2
    ENDED = 3


class Sequence:
    """The engine's state of one request. Prefill and decode are one thing: tokens still to compute."""

    __slots__ = (
        "biases",
        "biases_early",
        "cached_tokens",
        "computed",
        "copies",
        "copy_from",
        "dropped",
        "exporting",
        "history",
        "importing",
        "leader",
        "logits_done",
        "node",
        "order",
        "prefill_end",
        "prompt_length",
        "recalled",
        "request",
        "sampling",
        "shared",
        "status",
        "tables",
        "tokens",
        "tree_blocks",
    )

    def __init__(self, request: Request, arrival: int, groups: int):
        self.request = request
        self.order = (request.priority, arrival)
        """Who goes first: smaller ones."""
        self.status = Status.WAITING
        self.tokens = [*request.prompt, *request.output]
        """The prompt, then the output."""
        self.prompt_length = len(request.prompt)
        self.computed = 0
        """Tokens whose keys and values are in this sequence's blocks."""
        self.prefill_end = 0
        """How many tokens were known when it last started: those before are prefilled, later ones decoded."""
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix tree at the first start; None before it."""
        self.logits_done = 0
        """Prompt positions before this one have reported what they yield, or never will."""
        self.dropped = False
        """Ended while its step was being computed; freed when that is collected."""

        self.importing = request.importing
        """Its blocks are filled from elsewhere, or will be; it computes nothing until that ends."""
        self.exporting = request.exporting
        """Its blocks are read from elsewhere, or will be."""
        self.recalled = False
        """Whoever has its blocks on loan should give them back soon."""

        self.tables = tuple(IntArray() for _ in range(groups))
        """The block table in each cache group."""
        self.node: Node | None = None
        """The tree's node of the last full block; None before the first."""
        self.tree_blocks = 0
        """How many of the leading blocks are nodes of the tree, down to `node`."""
        self.copies: tuple[BlockCopy, ...] = ()
        """To be made by the next step, from the locked tail of `copy_from`."""
        self.copy_from = Match()

        self.leader: Sequence | None = None
        """While not started: the sequence that is computing the prefix this one waits for."""
        self.shared = 0
        """How many leading tokens it shares with its leader."""

        self.sampling = request.sampling.record().tobytes()
        """Its sampling record, but for the position."""
        self.history = _history(request) if request.sampling.uses_history else None
        biases = dict(request.logit_bias)
        self.biases = _bias_arrays(biases)
        """Its logit biases: ids and values."""
        early = request.min_tokens > 0 and request.constraint is None
        self.biases_early = (
            _bias_arrays(biases | dict.fromkeys(request.stop_token_ids, -np.inf)) if early else self.biases
        )
        """While it has less than its least number of tokens. Where there are masks, they see to that."""

    @property
    def started(self) -> bool:
        """Whether it holds blocks; a running sequence that waits for its leader does not."""
        return self.tables[0].size > 0

    @property
    def lent(self) -> bool:
        """Whether a transfer may touch its blocks: they can be neither preempted nor freed."""
        return self.started and (self.importing or self.exporting)

    @property
    def capacity(self) -> int:
        """Tokens that its blocks can hold."""
        return self.tables[0].size * BLOCK_TOKENS

    @property
    def pending(self) -> int:
        """Tokens still to compute; the last of them yields the next token."""
        return len(self.tokens) - self.computed

    def may_not_stop(self, length: int) -> bool:
        """Whether the token after so many, those of the prompt included, can be no stop token."""
        return length - self.prompt_length < self.request.min_tokens

    def biases_at(self, length: int) -> tuple[Int32, Float32]:
        """The biases of the token that comes after so many."""
        return self.biases_early if self.may_not_stop(length) else self.biases

    @property
    def remaining(self) -> int:
        """Tokens that it may still be given."""
        return self.prompt_length + self.request.max_tokens - len(self.tokens)

    def append(self, token: int) -> FinishReason | None:
        """Take a sampled token; returns why the request ends with it, if it does."""
        self.tokens.append(token)
        if self.history is not None:
            self.history.append(-1 - token)
        if token in self.request.stop_token_ids:
            return FinishReason.STOP
        if (matcher := self.request.constraint) is not None:
            matcher.advance(token)
            if matcher.error:
                return FinishReason.ERROR
            if matcher.finished:
                return FinishReason.STOP
        if self.remaining <= 0:
            return FinishReason.LENGTH
        return None

    def truncate(self, length: int) -> None:
        """Take back the tokens from position `length` on, which must be output."""
        assert length >= self.prompt_length
        del self.tokens[length:]
        self.computed = min(self.computed, length)
        if self.history is not None:
            self.history.truncate(length)


def _history(request: Request) -> IntArray:
    """The tokens so far, those of the output told apart by their sign."""
    return IntArray((*request.prompt, *(-1 - token for token in request.output)))


def _bias_arrays(biases: Mapping[int, float]) -> tuple[Int32, Float32]:
    return np.array([*biases], np.int32), np.array([*biases.values()], np.float32)


def blocks_for(tokens: int) -> int:
    """Blocks that this many tokens take."""
    return -(-tokens // BLOCK_TOKENS)
