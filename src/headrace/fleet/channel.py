"""The fleet's end of the messages: a ZeroMQ ROUTER socket to which workers connect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec
import zmq

from headrace.fleet.endpoint import Endpoint, PrivateFolder
from headrace.worker.messages import ToGateway, ToWorker, decode_to_gateway, encode
from headrace.worker.transport import readable

log = logging.getLogger("headrace.fleet")

_BURST = 64
"""Messages handled before other tasks of the event loop get their turn."""


class Channel:
    """Messages to and from workers; by default those on this host.

    The event loop watches the socket's file descriptor. That is edge-triggered: it tells that something
    changed, not that something is there; so at every sign, and after every message sent, the socket is read
    until it is empty.
    """

    def __init__(
        self, endpoint: Endpoint | None = None, stranger: Callable[[str, bytes], None] | None = None
    ) -> None:
        """`stranger` is given what comes from an identity to which no handler is attached.

        Raises what the endpoint's `bind` does.
        """
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[bytes, Callable[[ToGateway], None]] = {}
        self._stranger = stranger
        self._endpoint = endpoint or PrivateFolder()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        # No limit: the gateway limits what is in flight, and a message dropped would be a request lost.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        try:
            self.address = self._endpoint.bind(self._context, self._socket)
        except BaseException:
            self._end()
            raise
        self._loop.add_reader(self._socket.fileno(), self._read)

    def attach(self, identity: str, handler: Callable[[ToGateway], None]) -> None:
        """From now on the handler gets what this worker sends."""
        self._handlers[_bytes(identity)] = handler

    def detach(self, identity: str) -> None:
        """What this worker may still send is dropped, or a stranger's."""
        del self._handlers[_bytes(identity)]

    def send(self, identity: str, message: ToWorker) -> bool:
        """Queues a message; one to a worker that is gone is dropped. False where that is known."""
        self._loop.call_soon(self._read)
        try:
            self._socket.send_multipart((_bytes(identity), encode(message)))
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def close(self) -> None:
        """Drops what was not sent; closing again does nothing."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._end()

    def _end(self) -> None:
        self._socket.close(linger=0)
        self._endpoint.close()
        self._context.term()

    def _read(self) -> None:
        for _ in range(_BURST):
            if self._socket.closed or not readable(self._socket):
                return
            identity, data = self._socket.recv(), self._socket.recv()
            try:
                self._handle(identity, data)
            except msgspec.MsgspecError as error:
                log.error("a message of %d bytes is dropped: %s", len(data), error)
        self._loop.call_soon(self._read)

    def _handle(self, identity: bytes, data: bytes) -> None:
        if handler := self._handlers.get(identity):
            handler(decode_to_gateway(data))
        elif self._stranger is not None:
            self._stranger(identity.decode("utf-8", "surrogateescape"), data)


def _bytes(identity: str) -> bytes:
    return identity.encode("utf-8", "surrogateescape")
