"""What a connection of any transport offers, and the rules of its frames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

MAX_HEADER_BYTES = 1 << 20
MAX_BLOCKS = 1 << 16
"""In one frame."""
MAX_BLOCK_BYTES = 1 << 30
STALL_SECONDS = 10.0
"""How long a transfer that has begun may stand still, where the caller names no other time."""


class Frame(NamedTuple):
    """The beginning of a frame: what `receive` returns."""

    header: bytes
    sizes: tuple[int, ...]
    """Bytes of each block that follows."""


class Connection(ABC):
    """Frames both ways: a small header, which is the caller's own, and any number of blocks.

    Blocking. One thread may send while another receives. The receiver slows the sender down: what is in
    flight never exceeds the ring, or the socket's buffers. Each method raises TransferError, or what derives
    from it; after that the connection can only be closed.
    """

    peer: str
    """Who is at the other end, for logs."""

    @abstractmethod
    def send(self, header: bytes, blocks: Sequence[memoryview] = ()) -> None:
        """Send a frame. The blocks must not change before this returns, and may change as soon as it does.

        Each block is a contiguous view of bytes, not empty, and is not copied on the way to the transport.
        """

    @abstractmethod
    def receive(self, timeout: float | None = None) -> Frame:
        """Wait for the next frame, `timeout` seconds at most (None: for ever), and return its beginning.

        Raises TransferTimeoutError if no frame began, after which the connection is still good; PeerGoneError
        when the other end has closed.
        """

    @abstractmethod
    def receive_blocks(self, blocks: Sequence[memoryview]) -> None:
        """Write the blocks of the frame just received into these views, of exactly the frame's `sizes`.

        Called once after each `receive` whose frame has blocks. Raises ChecksumError if one is not what was
        sent; none of the frame's is then to be trusted.
        """

    @abstractmethod
    def abort(self) -> None:
        """Break the connection. From any thread: those that wait in it raise PeerGoneError at once."""

    @abstractmethod
    def close(self) -> None:
        """Free all it holds. Only when no other thread uses it; may be called twice."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
