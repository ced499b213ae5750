"""Shared memory between two processes of one host: a ring without a name, which dies with those who hold it.

The sender copies a block into the ring, the receiver copies it out into the block's new place; both do so in
the compiled core, and wait here for each other. The memory is a memfd and travels, as do the two event
counters by which one end wakes the other, as a descriptor over the Unix socket, so that a killed process
leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
from collections.abc import Callable, Sequence

import numpy as np

from headrace import _native
from headrace.worker.transfer.connection import STALL_SECONDS
from headrace.worker.transfer.errors import ProtocolError
from headrace.worker.transfer.stream import StreamConnection, poll

RING_BYTES = 4 << 20
"""At most so much is in flight; it should stay in the processor's shared cache."""
_FILE_BYTES = _native.RING_CONTROL_BYTES + RING_BYTES
DESCRIPTORS = 3
"""Of a ring: its memory, the counter that wakes the sender, the counter that wakes the receiver."""


class Ring:
    """One direction. Sender and receiver each have one of these over the same memory."""

    def __init__(self, memory: int, sender: int, receiver: int, *, sends: bool = False) -> None:
        """Takes the descriptors over. Raises ProtocolError if the memory is no ring's, or could shrink."""
        self.descriptors: tuple[int, ...] = memory, sender, receiver
        if os.fstat(memory).st_size != _FILE_BYTES or not (
            fcntl.fcntl(memory, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        ):
            self.close()
            raise ProtocolError("not a ring of this version's")
        self._mine, others = (sender, receiver) if sends else (receiver, sender)
        self._map = mmap.mmap(memory, _FILE_BYTES)
        isa, _ = _native.available_isas()[0]
        self._ring = _native.Ring(isa, np.frombuffer(self._map, np.uint8), others)

    @classmethod
    def create(cls) -> Ring:
        """For a sender. Raises OSError."""
        memory = os.memfd_create("headrace-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, _FILE_BYTES)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        return cls(memory, os.eventfd(0, flags), os.eventfd(0, flags), sends=True)

    def send(self, blocks: Sequence[memoryview], wait: Callable[[int], None]) -> list[int]:
        """Fill the ring with the blocks, and return their checksums.

        `wait(descriptor)` returns when the descriptor can be read, or raises.
        """
        self._ring.send(blocks)
        return self._moved(wait)

    def receive(self, blocks: Sequence[memoryview], wait: Callable[[int], None]) -> list[int]:
        """Fill the blocks from the ring, and return the checksums of what arrived; `wait` as for `send`."""
        self._ring.receive(blocks)
        return self._moved(wait)

    def _moved(self, wait: Callable[[int], None]) -> list[int]:
        try:
            while not self._ring.advance():
                wait(self._mine)
                os.eventfd_read(self._mine)
        except RuntimeError as error:
            raise ProtocolError(str(error)) from None
        return self._ring.checksums()

    def close(self) -> None:
        """Unmaps the memory and closes the descriptors."""
        if hasattr(self, "_map") and not self._map.closed:
            del self._ring
            self._map.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


class RingConnection(StreamConnection):
    """Frames over a Unix socket, their blocks through a ring for each direction."""

    def __init__(
        self, sock: socket.socket, peer: str, rings: tuple[Ring, Ring], stall: float = STALL_SECONDS
    ) -> None:
        """Takes the socket and the rings over; the first one is for what this end sends."""
        super().__init__(sock, peer, stall)
        self._outgoing, self._incoming = rings

    def close(self) -> None:
        super().close()
        self._outgoing.close()
        self._incoming.close()

    def _send_blocks(self, blocks: Sequence[memoryview]) -> list[int]:
        return self._outgoing.send(blocks, self._wait_for)

    def _receive_blocks(self, blocks: Sequence[memoryview]) -> list[int]:
        return self._incoming.receive(blocks, self._wait_for)

    def _wait_for(self, counter: int) -> None:
        """Until the counter counts. Raises OSError if the other end is gone, or does nothing for too long."""
        happened = poll([(counter, select.POLLIN), (self._socket, select.POLLRDHUP)], self._stall)
        if not happened:
            raise BlockingIOError
        if all(file != counter for file, _ in happened):
            raise ConnectionResetError("it closed the connection")
