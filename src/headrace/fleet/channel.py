"""The fleet's end of the messages: one ZeroMQ ROUTER socket to which every worker connects."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import zmq

from headrace.worker.messages import ToGateway, ToWorker, decode_to_gateway, encode
from headrace.worker.transport import readable

_BURST = 64
"""Messages handled before other tasks of the event loop get their turn."""

_MAX_FOLDER = 90
"""A Unix socket's path has at most 107 bytes; a temporary folder longer than this leaves too few."""


class Channel:
    """Messages to and from workers, through a folder of mode 0700 that only this user can enter.

    The event loop watches the socket's file descriptor. That is edge-triggered: it tells that something
    changed, not that something is there; so at every sign, and after every message sent, the socket is read
    until it is empty.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[bytes, Callable[[ToGateway], None]] = {}
        self._folder = _private_folder()
        self.address = f"ipc://{self._folder}/fleet"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        # No limit: the gateway limits what is in flight, and a message dropped would be a request lost.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(self.address)
        self._loop.add_reader(self._socket.fileno(), self._read)

    def attach(self, identity: str, handler: Callable[[ToGateway], None]) -> None:
        """From now on the handler gets what this worker sends."""
        self._handlers[identity.encode()] = handler

    def detach(self, identity: str) -> None:
        """What this worker may still send is dropped."""
        del self._handlers[identity.encode()]

    def send(self, identity: str, message: ToWorker) -> None:
        """Queues a message; one to a worker that is gone is dropped."""
        self._socket.send_multipart((identity.encode(), encode(message)))
        self._loop.call_soon(self._read)

    def close(self) -> None:
        """Drops what was not sent; closing again does nothing."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> None:
        for _ in range(_BURST):
            if self._socket.closed or not readable(self._socket):
                return
            identity, data = self._socket.recv(), self._socket.recv()
            if handler := self._handlers.get(identity):
                handler(decode_to_gateway(data))
        self._loop.call_soon(self._read)


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    if len(bytes(folder)) > _MAX_FOLDER:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="headrace-", dir="/tmp"))
    return folder
