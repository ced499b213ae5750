"""One connection of a worker to a gateway on another host, from its first word to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from headrace.errors import HeadraceError
from headrace.worker.messages import ToGateway, ToWorker, decode_to_worker, encode
from headrace.worker.secret import Keys
from headrace.worker.transport import readable

MAX_MESSAGE_BYTES = 1 << 28
"""Far more than any message has; a peer that announces more is cut off before memory is taken for it."""

_UNTRUSTED = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)
_ENDED = zmq.Event.DISCONNECTED | zmq.Event.CLOSED | zmq.Event.CONNECT_RETRIED


class UntrustedError(HeadraceError):
    """The other side does not show that it knows the secret."""


class ConnectionEndedError(HeadraceError):
    """There is no connection, or none any more."""


class Session:
    """A ZeroMQ DEALER socket that is never mended.

    What was under way when a connection broke is lost without a sign. So nothing is sent on a second one as
    if it were the first: the session ends with its connection, and the worker introduces itself anew.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Keys) -> None:
        """`address` is HOST:PORT; the host's name is looked up for each session."""
        self._socket = context.socket(zmq.DEALER)
        # What was to go over a connection that has ended must not keep the socket for ever.
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.IPV6, address.startswith("["))
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, keys.gateway.public)
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.worker.public)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.worker.secret)
        self._monitor = self._socket.get_monitor_socket(int(_UNTRUSTED | _ENDED))
        self._socket.connect(f"tcp://{address}")

    def register(self, poller: zmq.Poller) -> None:
        """Has the poller wake up at a message, and when the connection ends."""
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)

    def send(self, message: ToGateway) -> None:
        """Never blocks; a message for a connection that has ended is dropped."""
        with suppress(zmq.Again):
            self._socket.send(encode(message), zmq.NOBLOCK)

    def received(self) -> Iterator[ToWorker]:
        """All messages that have arrived.

        Raises UntrustedError, ConnectionEndedError after the last of them where the connection has ended.
        """
        while readable(self._socket):
            yield decode_to_worker(self._socket.recv())
        while readable(self._monitor):
            if recv_monitor_message(self._monitor)["event"] & _UNTRUSTED:
                raise UntrustedError("it does not know this worker's secret, or is no gateway for workers")
            raise ConnectionEndedError("there is no connection")

    def close(self, linger_seconds: float = 0.0) -> None:
        """Waits so long for what was sent to be out."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=round(1000 * linger_seconds))
