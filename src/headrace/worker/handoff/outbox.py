"""The prefill worker's side of a handoff: pushes a prompt's blocks while later ones are still computed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

import msgspec

from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.transfers import Progress
from headrace.worker.handoff.words import (
    BEAT_SECONDS,
    SILENCE_SECONDS,
    Beat,
    Blocks,
    BlockView,
    Ended,
    Unwanted,
    Wanted,
    blocks_of,
    decode_asked,
    encode,
)
from headrace.worker.transfer.connection import Connection
from headrace.worker.transfer.errors import ProtocolError, TransferError
from headrace.worker.transfer.listener import Listener

log = logging.getLogger("headrace.worker")

KEEP_SECONDS = 20.0
"""How long a computed prompt waits for whoever it is for."""
_FRAME_BLOCKS = 32
_MOST_EARLY = 4096
"""Prompts that may be wanted before this worker was told to compute them."""


class Outgoing:
    """One prompt's export. Implements `headrace.worker.loans.Export`."""

    def __init__(self, request_id: str, outbox: Outbox) -> None:
        self.id = request_id
        self.progress: Progress | None = None
        """What can be read now."""
        self.sent = 0
        """Tokens that need not be sent, or have been."""
        self.link: _Link | None = None
        self.stopped = False
        self._forsaken = False
        self._outbox = outbox
        self._timer: threading.Timer | None = None

    def advance(self, progress: Progress) -> None:
        self.progress = progress
        if (link := self.link) is not None:
            link.queue.put(self)
        elif self.stopped:
            self._outbox.end(self)
        elif progress.complete:
            self._timer = threading.Timer(KEEP_SECONDS, self._outbox.end, (self,))
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        self.stopped = True
        if (link := self.link) is not None:
            link.queue.put(self)
        elif self._may_end:
            self._outbox.end(self)

    def forsake(self) -> None:
        self._forsaken = True
        self.stop()

    def found(self, link: _Link, start: int) -> None:
        """Somebody wants it, from token `start` on."""
        self.link, self.sent = link, start
        if self._timer is not None:
            self._timer.cancel()
        link.queue.put(self)

    def lost(self) -> None:
        """Who wanted it is gone, and nothing that is put into the link's queue is read any more."""
        self.stopped = True
        self.link = None  # after `stopped`: `advance` or `forsake`, in another thread, now end it
        if self._may_end:
            self._outbox.end(self)

    @property
    def _may_end(self) -> bool:
        """Until then it stays, for whoever asks for it to be told at once that nothing will come."""
        return self._forsaken or self.progress is not None


class _Early(NamedTuple):
    """What a decode worker said of a prompt before this worker was told to compute it."""

    link: _Link
    start: int | None
    """The first token wanted; None where it is not wanted."""
    at: float


class Outbox:
    """All prompts that a worker computes for others. `close` when nothing is exported any more."""

    def __init__(
        self,
        address: str,
        view: BlockView,
        fingerprint: str,
        ended: Callable[[str], None],
        secret: bytes = b"",
    ) -> None:
        """`ended` is told, from any thread, of an export that reads no more.

        Raises TransferError where nothing can listen at the address.
        """
        self._view = view
        self._fingerprint = fingerprint
        self._ended = ended
        self._lock = threading.Lock()
        self._outgoing: dict[str, Outgoing] = {}
        self._early: dict[str, _Early] = {}
        self._listener = Listener(address, self._serve, secret=secret)

    @property
    def address(self) -> str:
        address: str = self._listener.address
        return address

    def outgoing(self, request_id: str) -> Outgoing:
        """The export of a prompt that is going to be computed."""
        made = Outgoing(request_id, self)
        with self._lock:
            self._outgoing[request_id] = made
            early = self._early.pop(request_id, None)
            # Not later: `_forget` must find the link, should it end now.
            if early is not None and early.start is not None:
                made.found(early.link, early.start)
        if early is not None and early.start is None:
            made.stop()
        return made

    def refuse(self, request_id: str, why: str) -> None:
        """A prompt will not be computed here."""
        with self._lock:
            early = self._early.pop(request_id, None)
        if early is not None and early.start is not None:
            early.link.queue.put(Ended(request_id, why))

    def drop_early(self, link: _Link) -> None:
        """Refuses what a decode worker waits for and nobody has asked of this worker."""
        latest = monotonic() - SILENCE_SECONDS
        with self._lock:
            late = [name for name, early in self._early.items() if early.link is link and early.at < latest]
        for name in late:
            self.refuse(name, "this worker was never asked to compute it")

    def end(self, outgoing: Outgoing) -> None:
        """Nothing more is read for it."""
        with self._lock:
            if self._outgoing.get(outgoing.id) is not outgoing:
                return
            del self._outgoing[outgoing.id]
        self._ended(outgoing.id)

    def close(self) -> None:
        self._listener.close()

    def _serve(self, connection: Connection) -> None:
        """Reads what a decode worker wants, until it is gone."""
        link = _Link(connection, self)
        pusher = threading.Thread(target=link.push, name=f"push {connection.peer}", daemon=True)
        pusher.start()
        try:
            while True:
                try:
                    asked = decode_asked(connection.receive().header)
                except msgspec.DecodeError as error:
                    raise ProtocolError(f"it asked for {error}") from None
                if isinstance(asked, Wanted):
                    self._want(link, asked)
                else:
                    self._unwant(link, asked)
        finally:
            connection.abort()
            link.queue.put(None)
            pusher.join()
            self._forget(link)

    def _want(self, link: _Link, wanted: Wanted) -> None:
        if wanted.fingerprint != self._fingerprint:
            link.queue.put(Ended(wanted.id, "the numerics fingerprints differ"))
            return
        with self._lock:
            outgoing = self._outgoing.get(wanted.id)
            if outgoing is None:
                self._note_early(wanted.id, _Early(link, wanted.start, monotonic()))
                return
        outgoing.found(link, wanted.start)

    def _unwant(self, link: _Link, asked: Unwanted) -> None:
        with self._lock:
            outgoing = self._outgoing.get(asked.id)
            if outgoing is None:
                self._note_early(asked.id, _Early(link, None, monotonic()))
                return
        if outgoing.link in (None, link):
            outgoing.stop()

    def _note_early(self, request_id: str, early: _Early) -> None:
        if len(self._early) < _MOST_EARLY:
            self._early[request_id] = early

    def _forget(self, link: _Link) -> None:
        """A decode worker is gone: what was for it is for nobody."""
        with self._lock:
            self._early = {name: early for name, early in self._early.items() if early.link is not link}
            left = [outgoing for outgoing in self._outgoing.values() if outgoing.link is link]
        for outgoing in left:
            outgoing.lost()


class _Link:
    """What goes to one decode worker, in one thread."""

    def __init__(self, connection: Connection, outbox: Outbox) -> None:
        self.queue: SimpleQueue[Outgoing | Ended | None] = SimpleQueue()
        self._connection = connection
        self._outbox = outbox

    def push(self) -> None:
        try:
            while True:
                try:
                    item = self.queue.get(timeout=BEAT_SECONDS)
                except Empty:
                    self._connection.send(encode(Beat()))
                    self._outbox.drop_early(self)
                    continue
                if item is None:
                    return
                if isinstance(item, Ended):
                    self._connection.send(encode(item))
                else:
                    self._push(item)
        except TransferError as error:
            log.info("handoff to %s: %s", self._connection.peer, error)
            self._connection.abort()  # whoever reads from it ends the rest

    def _push(self, outgoing: Outgoing) -> None:
        progress = outgoing.progress
        while progress is not None and not outgoing.stopped and outgoing.sent < progress.tokens:
            self._push_some(outgoing, progress)
        if outgoing.stopped or (progress is not None and progress.complete):
            self._outbox.end(outgoing)
            why = "its blocks were needed, or it was cancelled" if outgoing.stopped else ""
            self._connection.send(encode(Ended(outgoing.id, why)))

    def _push_some(self, outgoing: Outgoing, progress: Progress) -> None:
        start = outgoing.sent
        end = min(progress.tokens, start + _FRAME_BLOCKS * BLOCK_TOKENS)
        view = self._outbox._view
        blocks = [
            view(group, table[index])
            for index in range(start // BLOCK_TOKENS, blocks_of(end))
            for group, table in enumerate(progress.blocks)
        ]
        self._connection.send(encode(Blocks(outgoing.id, start, end)), blocks)
        outgoing.sent = end
