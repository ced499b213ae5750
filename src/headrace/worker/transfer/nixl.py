"""Blocks by NIXL over UCX: RDMA where there is a fabric, shared memory or TCP where there is none. An extra.

Frames travel over the connection's TCP socket. Instead of its blocks a frame brings their addresses; the
receiver reads them from the sender's memory, and NIXL's notification tells the sender that they were read.
NIXL: https://github.com/ai-dynamo/nixl
"""

from __future__ import annotations

import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from headrace.worker.transfer.connection import STALL_SECONDS
from headrace.worker.transfer.errors import PeerGoneError, ProtocolError, TransferError
from headrace.worker.transfer.stream import StreamConnection, poll

_PAUSE_SECONDS = 20e-6
"""Between two looks at a transfer. Each look also moves it on, which spares a thread of NIXL's that spins."""
Region = tuple[int, int, int]
"""Address, bytes, device: 0, the host's memory."""


class NixlConnection(StreamConnection):
    """A connection with a NIXL agent of its own at either end.

    Memory is registered when a block of it is first sent or received and stays so until `close`: register
    whole pools beforehand where that is dear.
    """

    def __init__(self, sock: socket.socket, peer: str, stall: float = STALL_SECONDS) -> None:
        """Takes the socket over. Raises TransferError where NIXL is not installed or does not start."""
        super().__init__(sock, peer, stall)
        try:
            from nixl_cu12 import _bindings, nixl_agent, nixl_agent_config, nixl_thread_sync_t
        except ImportError as error:
            raise TransferError(f"NIXL is missing ({error}): pip install 'headrace[nixl]'") from None
        # They have no base of their own.
        self._errors = tuple(
            error
            for name, error in vars(_bindings).items()
            if name.startswith("nixl") and name.endswith("Error")
        )
        config = nixl_agent_config(
            enable_prog_thread=False,
            backends=["UCX"],
            sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,  # one thread may send, another receive
        )
        self._agent: Any = nixl_agent(f"headrace-{secrets.token_hex(8)}", config)
        self._registered: dict[Region, memoryview] = {}
        self._registrations: list[Any] = []
        self._told: set[Region] = set()
        """Places that the other end's agent knows."""
        self._registering = Lock()
        self._other = ""
        self._sent = 0

    def close(self) -> None:
        super().close()
        if self._agent is not None:
            for registration in self._registrations:
                self._agent.deregister_memory(registration)
            self._agent = None
            self._registered.clear()
            self._registrations.clear()

    def _describe(self, blocks: Sequence[memoryview]) -> bytes:
        """Number of the transfer, addresses of the blocks, and what the other agent must know of new ones."""
        if not blocks:
            return b""
        regions = self._register(blocks)
        metadata = b""
        if untold := [(*region, "") for region in regions if region not in self._told]:
            places = self._agent.get_reg_descs(untold, "DRAM")
            metadata = self._agent.get_partial_agent_metadata(places, True)
            self._told.update(regions)
        self._sent += 1
        addresses = [address for address, _, _ in regions]
        return struct.pack(f"<{1 + len(addresses)}Q", self._sent, *addresses) + metadata

    def _send_blocks(self, blocks: Sequence[memoryview]) -> list[int]:
        checksums = [xxh3_64_intdigest(block) for block in blocks]
        wanted = str(self._sent).encode()
        self._await(lambda: any(wanted in notes for notes in self._agent.get_new_notifs().values()))
        return checksums

    def _receive_blocks(self, blocks: Sequence[memoryview]) -> list[int]:
        numbers = struct.Struct(f"<{1 + len(blocks)}Q")
        if len(self._addition) < numbers.size:
            raise ProtocolError(f"{self.peer}: a frame without the addresses of its blocks")
        sent, *addresses = numbers.unpack_from(self._addition)
        metadata = self._addition[numbers.size :]
        there = [(address, len(block), 0) for address, block in zip(addresses, blocks, strict=True)]
        here = self._register(blocks)
        if metadata:
            self._other = self._agent.add_remote_agent(metadata).decode()
        self._read(here, there, str(sent).encode())
        return [xxh3_64_intdigest(block) for block in blocks]

    def _read(self, here: list[Region], there: list[Region], notification: bytes) -> None:
        descriptions = [self._agent.get_xfer_descs(regions, "DRAM") for regions in (here, there)]
        read = self._agent.initialize_xfer("READ", *descriptions, self._other, notification)
        try:
            if self._agent.transfer(read) != "DONE":
                self._await(lambda: self._is_done(read))
        finally:
            self._agent.release_xfer_handle(read)

    @contextmanager
    def _broken_by(self, doing: str) -> Iterator[None]:
        with super()._broken_by(doing):
            try:
                yield
            except self._errors as error:
                raise TransferError(f"cannot {doing} {self.peer}: NIXL: {error}") from None

    def _is_done(self, read: Any) -> bool:
        state = self._agent.check_xfer_state(read)
        if state == "ERR":
            raise PeerGoneError(f"{self.peer}: NIXL's read of the blocks failed")
        return bool(state == "DONE")

    def _register(self, blocks: Sequence[memoryview]) -> list[Region]:
        """Where the blocks lie, all registered and kept alive."""
        regions = [(_address(block), len(block), 0) for block in blocks]
        with self._registering:
            new = {
                region: block
                for region, block in zip(regions, blocks, strict=True)
                if region not in self._registered
            }
            if new:
                places = [(*region, "") for region in new]
                self._registrations.append(self._agent.register_memory(places, "DRAM"))
                self._registered.update(new)
        return regions

    def _await(self, done: Callable[[], bool]) -> None:
        """Raises OSError if the other end goes, or nothing ends within the time for standing still."""
        deadline = time.monotonic() + self._stall
        while not done():
            if poll([(self._socket, select.POLLRDHUP)], 0):
                raise ConnectionResetError("it closed the connection")
            if time.monotonic() > deadline:
                raise BlockingIOError
            time.sleep(_PAUSE_SECONDS)


def _address(block: memoryview) -> int:
    address, _ = np.frombuffer(block, np.uint8).__array_interface__["data"]
    return int(address)
