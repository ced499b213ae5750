"""Blocks on loan to a transfer: filled from elsewhere (an import), or read to be sent on (an export).

What moves the bytes runs beside the steps, so it may touch a block at any instant. Hence one rule: while a
transfer has a sequence's blocks, they are neither preempted nor freed, whatever becomes of the request; only
the transfer itself gives them back, when it has stopped. Where they are wanted, it is asked to stop.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.kv_cache import KVCache
from headrace.engine.sequence import Sequence, Status


class Reservation(NamedTuple):
    """An import may write now."""

    id: str
    start: int
    """The first token wanted, a multiple of 16: the prefix tree holds those before it."""
    end: int
    """The first token that is computed here in any case, the request's last one."""
    blocks: tuple[tuple[int, ...], ...]
    """For each cache group the blocks of the tokens from `start` on."""


class Progress(NamedTuple):
    """An export may read so much, and will find it unchanged until it ends."""

    id: str
    tokens: int
    """Computed; a multiple of 16 unless `complete`."""
    blocks: tuple[tuple[int, ...], ...]
    """For each cache group the blocks of these tokens."""
    complete: bool
    """Nothing more will come."""


class TransferNews(NamedTuple):
    """What has become of transfers since somebody last asked."""

    reserved: list[Reservation]
    progress: list[Progress]
    unwanted: list[str]
    """Requests whose transfers should stop soon: cancelled, or others need their blocks."""


class _Loan:
    """What has been told of a request's transfers."""

    __slots__ = ("complete", "exported", "reserved", "seq", "unwanted")

    def __init__(self, seq: Sequence):
        self.seq = seq
        self.reserved = self.complete = self.unwanted = False
        self.exported = 0


class Transfers:
    """The sequences of one engine that import, export, or both."""

    def __init__(self, cache: KVCache):
        self._cache = cache
        self._loans: dict[str, _Loan] = {}
        self.imported_tokens = 0

    def __len__(self) -> int:
        """Those that have not given everything back; their requests may have ended."""
        return len(self._loans)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._loans

    def add(self, seq: Sequence) -> None:
        """Follow a sequence that has just been made, if it imports or exports."""
        if seq.importing or seq.exporting:
            self._loans[seq.request.id] = _Loan(seq)

    def news(self) -> TransferNews:
        """What has become known since the last call."""
        news = TransferNews([], [], [])
        for loan in self._loans.values():
            seq = loan.seq
            if not seq.started:
                continue
            if seq.recalled and not loan.unwanted:
                loan.unwanted = True
                news.unwanted.append(seq.request.id)
            if seq.importing and not loan.reserved:
                loan.reserved = True
                news.reserved.append(_reservation(seq))
            if seq.exporting and not loan.complete:
                progress = _progress(seq)
                if progress.complete or progress.tokens > loan.exported:
                    loan.exported, loan.complete = progress.tokens, progress.complete
                    news.progress.append(progress)
        return news

    def imported(self, request_id: str, tokens: int) -> None:
        """The first `tokens` tokens are in the sequence's blocks: others may share them from now on."""
        seq = self._loans[request_id].seq
        assert seq.importing and seq.started and seq.computed <= tokens < len(seq.tokens)
        self.imported_tokens += tokens - seq.computed
        seq.computed = tokens
        self._cache.commit(seq, partial=False)

    def end_import(self, request_id: str) -> None:
        """No byte will be written any more; the rest is computed. Without an import, nothing happens."""
        if loan := self._loans.get(request_id):
            loan.seq.importing = False
            self._settle(loan.seq)

    def end_export(self, request_id: str) -> None:
        """No byte will be read any more. Without an export, nothing happens."""
        if loan := self._loans.get(request_id):
            loan.seq.exporting = False
            self._settle(loan.seq)

    def ended(self, seq: Sequence) -> None:
        """The scheduler has forgotten the sequence; what is on loan is still held."""
        if not seq.lent:
            self._loans.pop(seq.request.id, None)

    def _settle(self, seq: Sequence) -> None:
        if seq.importing or seq.exporting:
            return
        del self._loans[seq.request.id]
        seq.recalled = False
        if seq.status is Status.ENDED:
            self._cache.release(seq)
        self._cache.releases += 1  # what was on loan can be preempted, at least


def _reservation(seq: Sequence) -> Reservation:
    start = seq.tree_blocks
    blocks = tuple(tuple(table.view()[start:].tolist()) for table in seq.tables)
    return Reservation(seq.request.id, seq.computed, len(seq.tokens) - 1, blocks)


def _progress(seq: Sequence) -> Progress:
    """A begun block is told of only when nothing more is written to it."""
    complete = seq.status is Status.ENDED
    count = seq.computed // BLOCK_TOKENS
    tokens = seq.computed if complete else count * BLOCK_TOKENS
    count += complete and seq.computed % BLOCK_TOKENS > 0
    blocks = tuple(tuple(table.view()[:count].tolist()) for table in seq.tables)
    return Progress(seq.request.id, tokens, blocks, complete)
