"""The worker's end of the messages: a ZeroMQ DEALER socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from socket import socketpair
from typing import Protocol

import zmq

from headrace.worker.messages import ToGateway, ToWorker, decode_to_worker, encode

_LINGER_MS = 2000
"""How long closing waits until the last messages are out."""


_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
"""As plain numbers, which combine several times sooner than enumerations."""


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message is there, whole. To ask costs less than the exception of a socket that has none."""
    return bool(int(socket.getsockopt(_EVENTS)) & _READABLE)


class Messages(Protocol):
    """The end of the messages that a worker's loop works with."""

    def send(self, message: ToGateway) -> None:
        """Never blocks."""
        ...

    def received(self) -> Iterator[ToWorker]:
        """All messages that have arrived; none is waited for."""
        ...

    def wait(self) -> None:
        """Sleeps until a message arrives, or another thread has called `wake`, or sooner."""
        ...

    def wake(self) -> None:
        """Ends the `wait` that is going on, or the next one; from any thread."""
        ...


class Channel:
    """Messages from and to the gateway. Sending never blocks: a thread of ZeroMQ's delivers."""

    def __init__(self, address: str, identity: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        # No limit: the gateway limits what is in flight, and a message dropped would be a request lost.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(address)
        self._bell, self._cord = socketpair()
        self._bell.setblocking(False)
        self._cord.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)

    def send(self, message: ToGateway) -> None:
        self._socket.send(encode(message))

    def received(self) -> Iterator[ToWorker]:
        """All messages that have arrived; none is waited for."""
        while readable(self._socket):
            yield decode_to_worker(self._socket.recv())

    def wait(self) -> None:
        """Sleeps until a message arrives, or another thread has called `wake`."""
        self._poller.poll()
        with suppress(BlockingIOError):
            self._bell.recv(4096)

    def wake(self) -> None:
        """Ends the `wait` that is going on, or the next one; from any thread."""
        with suppress(BlockingIOError):  # it has been rung often enough
            self._cord.send(b"!")

    def close(self) -> None:
        """Waits until what was sent is out, then closes."""
        self._socket.close(linger=_LINGER_MS)
        self._context.term()
        self._bell.close()
        self._cord.close()
