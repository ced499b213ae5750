"""What an output must match, as the engine sees it: which tokens may come next, and their masks in a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from headrace.backends.step import UInt32

if TYPE_CHECKING:
    from headrace.engine.scheduler import Chunk


class Matcher(Protocol):
    """Follows one output, token by token. Its methods never raise: what goes wrong is `error`, for good."""

    @property
    def error(self) -> str:
        """Why it cannot go on; empty while it can."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the output is complete, and nothing but an end-of-text token could follow."""
        ...

    def fill(self, mask: UInt32) -> None:
        """Set, in [ceil(vocab/32)] words, the bits of the tokens that may come next, and no others."""
        ...

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may follow one another now."""
        ...

    def advance(self, token: int) -> None:
        """Take a token, which the mask allowed."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last so many."""
        ...


def fill_masks(chunks: Iterable[Chunk], bits: UInt32) -> None:
    """Fill a plan's masks, [masks, words]: one for each row of a constrained sequence that yields a token."""
    row = 0
    for chunk in chunks:
        matcher = chunk.seq.request.constraint
        if matcher is None or not chunk.samples:
            continue
        for drafted in range(1 + len(chunk.drafts)):
            if drafted:
                matcher.advance(chunk.drafts[drafted - 1])
            matcher.fill(bits[row])
            if chunk.seq.may_not_stop(chunk.end + drafted):
                _forbid(bits[row], chunk.seq.request.stop_token_ids)
            row += 1
        if chunk.drafts:
            matcher.rollback(len(chunk.drafts))


def _forbid(mask: UInt32, tokens: Iterable[int]) -> None:
    """Clear the bits of these tokens, as long as others are left: a complete output may end too early."""
    others = mask.copy()
    for token in tokens:
        others[token // 32] &= ~np.uint32(1 << token % 32)
    if others.any():
        mask[:] = others
