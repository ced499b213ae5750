"""Shared memory between two processes of one host: a ring without a name, which dies with those who hold it.

The sender copies a piece of a block into the ring, the receiver copies it out into the block's new place. Two
event counters say how many bytes were filled and how many were freed. The memory is a memfd and travels, as
the counters do, as a descriptor over the Unix socket, so that a killed process leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
from collections.abc import Callable, Sequence

import numpy as np
from xxhash import xxh3_64

from headrace.worker.transfer.connection import STALL_SECONDS
from headrace.worker.transfer.errors import ProtocolError
from headrace.worker.transfer.stream import StreamConnection, poll

RING_BYTES = 4 << 20
"""At most so much is in flight; it should stay in the processor's shared cache."""
_PIECE_BYTES = 512 << 10
"""A small model's whole block. It stays in a core's own cache until its checksum is made."""
DESCRIPTORS = 3
"""Of a ring: its memory, the counter of bytes filled, the counter of bytes freed."""


class Ring:
    """One direction. Sender and receiver each have one of these over the same memory."""

    def __init__(self, memory: int, filled: int, freed: int) -> None:
        """Takes the descriptors over. Raises ProtocolError if the memory is no ring's, or could shrink."""
        self.descriptors: tuple[int, ...] = memory, filled, freed
        if os.fstat(memory).st_size != RING_BYTES or not (
            fcntl.fcntl(memory, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        ):
            self.close()
            raise ProtocolError("not a ring of this version's")
        self._map = mmap.mmap(memory, RING_BYTES)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._position = 0
        self._available = self._unreported = 0

    @classmethod
    def create(cls) -> Ring:
        """For a sender, who may fill all of it. Raises OSError."""
        memory = os.memfd_create("headrace-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, RING_BYTES)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        ring = cls(memory, os.eventfd(0, flags), os.eventfd(0, flags))
        ring._available = RING_BYTES
        return ring

    def move(self, data: memoryview, *, out: bool, wait: Callable[[int], None]) -> int:
        """Copy `data` into the ring, or the other way round if `out`; returns the checksum of `data`.

        `wait(descriptor)` returns when the descriptor can be read, or raises.
        """
        _, filled, freed = self.descriptors
        mine, others = (filled, freed) if out else (freed, filled)
        ours = np.frombuffer(data, np.uint8)
        checksum = xxh3_64()
        done = 0
        while done < len(data):
            if not self._available:
                self._take(mine, wait)
            size = min(self._available, _PIECE_BYTES, len(data) - done, RING_BYTES - self._position)
            there, here = self._bytes[self._position : self._position + size], ours[done : done + size]
            np.copyto(here, there) if out else np.copyto(there, here)
            checksum.update(here.data)
            self._position = (self._position + size) % RING_BYTES
            self._available -= size
            self._unreported += size
            # A sender is woken up rarely, which costs the receiver time; it still has the rest of the ring.
            if not out or self._unreported >= RING_BYTES // 4:
                os.eventfd_write(others, self._unreported)
                self._unreported = 0
            done += size
        return checksum.intdigest()

    def _take(self, counter: int, wait: Callable[[int], None]) -> None:
        """What the other end has filled or freed meanwhile."""
        wait(counter)
        self._available = os.eventfd_read(counter)
        if self._available > RING_BYTES:
            raise ProtocolError("the other end counts more bytes than a ring has")

    def close(self) -> None:
        """Unmaps the memory and closes the descriptors."""
        if hasattr(self, "_map") and not self._map.closed:
            del self._bytes
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
        return [self._outgoing.move(block, out=False, wait=self._wait_for) for block in blocks]

    def _receive_blocks(self, blocks: Sequence[memoryview]) -> list[int]:
        return [self._incoming.move(block, out=True, wait=self._wait_for) for block in blocks]

    def _wait_for(self, counter: int) -> None:
        """Until the counter counts. Raises OSError if the other end is gone, or does nothing for too long."""
        happened = poll([(counter, select.POLLIN), (self._socket, select.POLLRDHUP)], self._stall)
        if not happened:
            raise BlockingIOError
        if all(file != counter for file, _ in happened):
            raise ConnectionResetError("it closed the connection")
