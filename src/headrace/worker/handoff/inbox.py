"""The decode worker's side of a handoff: writes blocks that come from a prefill worker where they belong."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from queue import SimpleQueue

import msgspec

from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.transfers import Reservation
from headrace.worker.handoff.words import (
    SILENCE_SECONDS,
    Beat,
    Blocks,
    BlockView,
    Ended,
    Unwanted,
    Wanted,
    blocks_of,
    decode_told,
    encode,
)
from headrace.worker.loans import Loans
from headrace.worker.messages import Handoff
from headrace.worker.transfer.connection import Connection, Frame
from headrace.worker.transfer.errors import PeerGoneError, ProtocolError, TransferError, TransferTimeoutError
from headrace.worker.transfer.listener import connect

log = logging.getLogger("headrace.worker")


class Incoming:
    """One prompt's import. Implements `headrace.worker.loans.Import`."""

    def __init__(self, request_id: str, handoff: Handoff, inbox: Inbox) -> None:
        self.id = handoff.id
        """What the prefill worker calls it."""
        self.reservation: Reservation | None = None
        self.arrived = 0
        """Tokens up to which blocks are here."""
        self._request_id = request_id
        self._address = handoff.address
        self._inbox = inbox
        self._link: _Link | None = None
        self._lock = threading.Lock()
        self._writing = self._stopped = self._ended = False

    def start(self, reservation: Reservation) -> None:
        self.reservation, self.arrived = reservation, reservation.start
        link = self._inbox.link(self._address)
        if reservation.start >= reservation.end:
            link.dismiss(self.id)
            self.end()
        else:
            self._link = link
            link.want(self)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        if self._link is not None:
            self._link.unwant(self)
        self._settle()

    def begin_write(self) -> bool:
        """Whether blocks may be written now; `end_write` must follow then."""
        with self._lock:
            self._writing = not (self._stopped or self._ended)
            return self._writing

    def end_write(self, tokens: int) -> None:
        """Blocks for the tokens up to here have been written."""
        assert self.reservation is not None
        with self._lock:
            self._writing = False
            stopped = self._stopped
        if tokens > self.arrived and not stopped:
            self.arrived = tokens
            self._inbox.loans.imported(self._request_id, min(tokens, self.reservation.end))
        self._settle()

    def end(self) -> None:
        """Nothing more will come, or nothing more is wanted."""
        with self._lock:
            self._stopped = True
            self._writing = False
        self._settle()

    def _settle(self) -> None:
        with self._lock:
            if self._ended or self._writing or not self._stopped or self.reservation is None:
                return
            self._ended = True
        self._inbox.loans.import_ended(self._request_id)


class Inbox:
    """All prompts that others compute for this worker."""

    def __init__(
        self,
        view: BlockView,
        block_bytes: Sequence[int],
        fingerprint: str,
        loans: Loans,
        secret: bytes = b"",
    ) -> None:
        """`block_bytes` are those of a block in each cache group."""
        self.view = view
        self.loans = loans
        self.fingerprint = fingerprint
        self.secret = secret
        self.block_bytes = tuple(block_bytes)
        self._links: dict[str, _Link] = {}

    def incoming(self, request_id: str, handoff: Handoff) -> Incoming:
        """The import of a prompt that another worker computes."""
        return Incoming(request_id, handoff, self)

    def link(self, address: str) -> _Link:
        """The link to a prefill worker, a new one where the last has broken."""
        link = self._links.get(address)
        if link is None or link.broken:
            for gone in [known for known, other in self._links.items() if other.broken]:
                del self._links[gone]
            link = self._links[address] = _Link(address, self)
        return link


class _Link:
    """What comes from one prefill worker."""

    def __init__(self, address: str, inbox: Inbox) -> None:
        self.broken = False
        self._address = address
        self._inbox = inbox
        self._lock = threading.Lock()
        self._incoming: dict[str, Incoming] = {}
        self._asking: SimpleQueue[Wanted | Unwanted | None] = SimpleQueue()
        threading.Thread(target=self._run, name=f"handoff {address}", daemon=True).start()

    def want(self, incoming: Incoming) -> None:
        """Asks for what is not here; if that cannot be, the import ends."""
        assert incoming.reservation is not None
        with self._lock:
            broken = self.broken
            if not broken:
                self._incoming[incoming.id] = incoming
        if broken:
            incoming.end()
        else:
            self._asking.put(Wanted(incoming.id, incoming.arrived, self._inbox.fingerprint))

    def unwant(self, incoming: Incoming) -> None:
        """Nothing more is wanted."""
        with self._lock:
            known = self._incoming.get(incoming.id) is incoming
        if known:
            self.dismiss(incoming.id)

    def dismiss(self, handoff_id: str) -> None:
        """Lets the prefill worker know that it need not keep a prompt."""
        self._asking.put(Unwanted(handoff_id))

    def _run(self) -> None:
        try:
            with connect(self._address, secret=self._inbox.secret) as connection:
                asker = threading.Thread(target=self._ask, args=(connection,), daemon=True)
                asker.start()
                try:
                    while True:
                        self._take(connection, connection.receive(SILENCE_SECONDS))
                finally:
                    connection.abort()
                    self._asking.put(None)
                    asker.join()
        except TransferTimeoutError:
            log.warning("handoff from %s: nothing was heard for %g s", self._address, SILENCE_SECONDS)
        except PeerGoneError as error:
            log.info("handoff from %s: %s", self._address, error)
        except TransferError as error:
            log.warning("handoff from %s: %s", self._address, error)
        finally:
            self._break()

    def _ask(self, connection: Connection) -> None:
        try:
            while (asked := self._asking.get()) is not None:
                connection.send(encode(asked))
        except TransferError:
            connection.abort()  # who receives tells

    def _take(self, connection: Connection, frame: Frame) -> None:
        try:
            told = decode_told(frame.header)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"it sent {error}") from None
        match told:
            case Blocks():
                self._write(connection, frame, told)
            case Ended(id=request_id, why=why):
                with self._lock:
                    incoming = self._incoming.pop(request_id, None)
                if incoming is not None:
                    if why:
                        log.info("handoff from %s: %s: %s", self._address, request_id, why)
                    incoming.end()
            case Beat():
                pass

    def _write(self, connection: Connection, frame: Frame, told: Blocks) -> None:
        with self._lock:
            incoming = self._incoming.get(told.id)
        if incoming is None or not incoming.begin_write():
            self._discard(connection, frame)
            return
        done = incoming.arrived
        try:
            connection.receive_blocks(self._views(incoming, frame, told))
            done = told.end
        finally:
            incoming.end_write(done)

    def _views(self, incoming: Incoming, frame: Frame, told: Blocks) -> list[memoryview]:
        reservation = incoming.reservation
        assert reservation is not None
        first = (told.start - reservation.start) // BLOCK_TOKENS
        last = blocks_of(told.end - reservation.start)
        count = len(reservation.blocks[0])
        if told.start != incoming.arrived or not first < last <= count:
            raise ProtocolError(f"{told.id}: tokens {told.start} to {told.end} were not expected")
        views = [
            self._inbox.view(group, table[index])
            for index in range(first, last)
            for group, table in enumerate(reservation.blocks)
        ]
        if tuple(map(len, views)) != frame.sizes:
            raise ProtocolError(f"{told.id}: blocks of {frame.sizes[:1]} bytes were not expected")
        return views

    def _discard(self, connection: Connection, frame: Frame) -> None:
        """Takes blocks that came too late."""
        groups = self._inbox.block_bytes
        if frame.sizes != groups * (len(frame.sizes) // len(groups)):
            raise ProtocolError(f"blocks of {frame.sizes[:1]} bytes were not expected")
        if frame.sizes:
            connection.receive_blocks([memoryview(bytearray(size)) for size in frame.sizes])

    def _break(self) -> None:
        with self._lock:
            self.broken = True
            left, self._incoming = list(self._incoming.values()), {}
        for incoming in left:
            incoming.end()
