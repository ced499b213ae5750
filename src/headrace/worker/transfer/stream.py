"""Frames over a socket: the blocks go from their memory to the socket and from the socket to their memory.

A frame is a prefix, its description (sizes of the blocks, header, what the transport adds), the blocks, and
the blocks' checksums. The prefix has a checksum of the description. All numbers are little-endian.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from xxhash import xxh3_64_intdigest

from headrace.worker.transfer.connection import (
    MAX_BLOCK_BYTES,
    MAX_BLOCKS,
    MAX_HEADER_BYTES,
    STALL_SECONDS,
    Connection,
    Frame,
)
from headrace.worker.transfer.errors import (
    ChecksumError,
    PeerGoneError,
    ProtocolError,
    TransferTimeoutError,
)

_PREFIX = struct.Struct("<IIIQ")
"""Bytes of the header, number of blocks, bytes of what the transport adds, checksum of the description."""


class StreamConnection(Connection):
    """All of a connection over a socket whose two ends have greeted each other.

    A transport that moves blocks by other ways overrides `_describe`, `_send_blocks`, `_receive_blocks`.
    """

    def __init__(self, sock: socket.socket, peer: str, stall: float = STALL_SECONDS) -> None:
        """Takes the socket over. `stall`: seconds for which a transfer that has begun may stand still."""
        self.peer = peer
        self._socket = sock
        self._stall = stall
        self._expected: tuple[int, ...] = ()
        self._addition = b""
        # The buffers' sizes are left to the system: it grows TCP's further than it lets a program set them.
        set_stall(sock, stall)

    def send(self, header: bytes, blocks: Sequence[memoryview] = ()) -> None:
        sizes = [len(block) for block in blocks]
        assert len(header) <= MAX_HEADER_BYTES and len(blocks) <= MAX_BLOCKS
        assert all(0 < size <= MAX_BLOCK_BYTES for size in sizes)
        with self._broken_by("send to"):
            addition = self._describe(blocks)
            description = struct.pack(f"<{len(sizes)}I", *sizes) + header + addition
            prefix = _PREFIX.pack(len(header), len(sizes), len(addition), xxh3_64_intdigest(description))
            self._send_bytes(prefix + description)
            if blocks:
                checksums = self._send_blocks(blocks)
                self._send_bytes(struct.pack(f"<{len(blocks)}Q", *checksums))

    def receive(self, timeout: float | None = None) -> Frame:
        assert not self._expected, "the last frame's blocks are still to be received"
        with self._broken_by("receive from"):
            self._wait(timeout)
            header_bytes, count, added, checksum = _PREFIX.unpack(self._receive_bytes(_PREFIX.size))
            if header_bytes > MAX_HEADER_BYTES or count > MAX_BLOCKS or added > MAX_HEADER_BYTES:
                raise ProtocolError(f"{self.peer}: a frame beyond all limits, or no frame at all")
            description = self._receive_bytes(4 * count + header_bytes + added)
        if xxh3_64_intdigest(description) != checksum:
            raise ChecksumError(f"{self.peer}: the beginning of a frame arrived corrupted")
        sizes = struct.unpack_from(f"<{count}I", description)
        if not all(0 < size <= MAX_BLOCK_BYTES for size in sizes):
            raise ProtocolError(f"{self.peer}: a block of impossible size")
        self._expected = sizes
        self._addition = bytes(description[4 * count + header_bytes :])
        return Frame(bytes(description[4 * count : 4 * count + header_bytes]), sizes)

    def receive_blocks(self, blocks: Sequence[memoryview]) -> None:
        sizes, self._expected = self._expected, ()
        assert sizes == tuple(len(block) for block in blocks), "the views are as long as the frame says"
        if not blocks:
            return
        with self._broken_by("receive from"):
            found = self._receive_blocks(blocks)
            sent = struct.unpack(f"<{len(blocks)}Q", self._receive_bytes(8 * len(blocks)))
        for number, (a, b) in enumerate(zip(found, sent, strict=True)):
            if a != b:
                raise ChecksumError(f"{self.peer}: block {number} of {len(blocks)} arrived corrupted")

    def abort(self) -> None:
        # Not closed: another thread may be waiting on the descriptor's number.
        shut_down(self._socket)

    def close(self) -> None:
        shut_down(self._socket)
        self._socket.close()

    def _describe(self, blocks: Sequence[memoryview]) -> bytes:
        """What the transport adds to a frame's description."""
        return b""

    def _send_blocks(self, blocks: Sequence[memoryview]) -> list[int]:
        """Sends the blocks and returns their checksums."""
        checksums = []
        for block in blocks:
            checksums.append(
                xxh3_64_intdigest(block)
            )  # this also brings the block into the processor's cache
            self._send_bytes(block)
        return checksums

    def _receive_blocks(self, blocks: Sequence[memoryview]) -> list[int]:
        """Receives the blocks and returns the checksums of what arrived."""
        checksums = []
        for block in blocks:
            self._receive_into(block)
            checksums.append(xxh3_64_intdigest(block))
        return checksums

    def _send_bytes(self, data: bytes | memoryview) -> None:
        send_all(self._socket, data)

    def _receive_bytes(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        self._receive_into(data)
        return data

    def _receive_into(self, view: memoryview) -> None:
        receive_all(self._socket, view)

    def _wait(self, timeout: float | None) -> None:
        """Until something arrives, the other end's goodbye included."""
        if not poll([(self._socket, select.POLLIN)], timeout):
            raise TransferTimeoutError(f"{self.peer}: nothing came for {timeout} seconds")

    @contextmanager
    def _broken_by(self, doing: str) -> Iterator[None]:
        """Names what the system reports."""
        try:
            yield
        except BlockingIOError:
            raise TransferTimeoutError(f"{self.peer}: stood still for {self._stall} seconds") from None
        except OSError as error:
            raise PeerGoneError(f"cannot {doing} {self.peer}: {error.strerror or error}") from None


def set_stall(sock: socket.socket, seconds: float) -> None:
    """Let the system end a call that moves nothing for so long, with BlockingIOError.

    Unlike Python's own timeouts this leaves the socket blocking, so that one call can move a whole block.
    """
    sock.settimeout(None)
    microseconds = max(1, round(seconds * 1e6))
    value = struct.pack("@ll", microseconds // 1_000_000, microseconds % 1_000_000)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, value)


def send_all(sock: socket.socket, data: bytes | memoryview) -> None:
    """Raises OSError; BlockingIOError when it stands still."""
    view = memoryview(data)
    while len(view):
        view = view[sock.send(view, socket.MSG_NOSIGNAL) :]


def receive_all(sock: socket.socket, view: memoryview) -> None:
    """Fills the view. Raises OSError; ConnectionResetError if the other end closes before."""
    while len(view):
        count = sock.recv_into(view, 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionResetError("it closed the connection")
        view = view[count:]


def shut_down(sock: socket.socket) -> None:
    """Ends it in both directions, whether or not it is still connected or open."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def poll(wanted: Sequence[tuple[socket.socket | int, int]], timeout: float | None) -> list[tuple[int, int]]:
    """Descriptors at which something happened, and what; none if nothing did for `timeout` seconds."""
    waiting = select.poll()
    for file, events in wanted:
        waiting.register(file, events)
    return waiting.poll(None if timeout is None else max(0.0, timeout * 1000))
