"""Both ways to a connection: a listener that others connect to, and `connect`.

An address is `unix:@NAME`, on this host, a name that leaves no file; `tcp:HOST:PORT`; or `nixl:HOST:PORT`,
where frames go over TCP and blocks as NIXL finds best.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import BoundedSemaphore, Lock, Thread

from headrace.worker.transfer.connection import STALL_SECONDS, Connection
from headrace.worker.transfer.errors import PeerGoneError, ProtocolError, TransferError, TransferTimeoutError
from headrace.worker.transfer.greeting import GREETING_SECONDS, exchange_rings, prove
from headrace.worker.transfer.ring import RingConnection
from headrace.worker.transfer.stream import StreamConnection, set_stall, shut_down

_log = logging.getLogger(__name__)

MAX_GREETING = 32
"""Connections that have not yet proved who they are; more are closed at once."""

Handler = Callable[[Connection], None]
"""Serves one connection, in a thread of its own. The connection is closed when it returns or raises."""


class Listener:
    """Accepts connections, in a thread of its own, until closed."""

    def __init__(
        self, address: str, handler: Handler, *, secret: bytes = b"", stall: float = STALL_SECONDS
    ) -> None:
        """`unix:` alone takes a name that nobody has; port 0 any free port. `address` then says which.

        `secret` is of both ends, and needed but for `unix:`. A TransferError of the handler's is logged, and
        ends its connection alone. Raises TransferError where it cannot listen.
        """
        self._scheme, where = _parsed(address, secret)
        self._handler, self._secret, self._stall = handler, secret, stall
        self._greeting = BoundedSemaphore(MAX_GREETING)
        self._lock = Lock()
        self._sockets: set[socket.socket] = set()
        self._connections: set[Connection] = set()
        self._closed = False
        self._socket = _listening(self._scheme, where, address)
        if self._scheme == "unix":
            self.address = "unix:@" + self._socket.getsockname()[1:].decode()
        else:
            host, port = self._socket.getsockname()[:2]
            self.address = f"{self._scheme}:{host}:{port}"
        Thread(target=self._accept, name=f"transfer {self.address}", daemon=True).start()

    def close(self) -> None:
        """Accept no more, and abort the connections there are. Their handlers return in their own time."""
        with self._lock:
            self._closed = True
            shut_down(self._socket)
            for sock in self._sockets:
                shut_down(sock)
            for connection in self._connections:
                connection.abort()

    def _accept(self) -> None:
        with self._socket:
            while not self._closed:
                try:
                    sock, _ = self._socket.accept()
                except OSError as error:
                    if not self._closed:
                        _log.warning("%s: cannot accept a connection: %s", self.address, error)
                    continue
                if not self._greeting.acquire(blocking=False):
                    sock.close()
                    continue
                Thread(target=self._serve, args=(sock,), name="transfer", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        connection = None
        try:
            try:
                connection = self._greeted(sock)
            finally:
                self._greeting.release()
            if connection is not None:
                self._handler(connection)
        except TransferError as error:
            _log.warning("transfer over %s: %s", self.address, error)
        finally:
            if connection is not None:
                with self._lock:
                    self._connections.discard(connection)
                connection.close()

    def _greeted(self, sock: socket.socket) -> Connection | None:
        """None if the listener was closed meanwhile."""
        with self._lock:
            self._sockets.add(sock)
            if self._closed:
                shut_down(sock)
        try:
            connection = _greet(self._scheme, sock, self._secret, self._stall, accepting=True)
        finally:
            with self._lock:
                self._sockets.discard(sock)
        with self._lock:
            if self._closed:
                connection.close()
                return None
            self._connections.add(connection)
        return connection


def connect(
    address: str, *, secret: bytes = b"", timeout: float = GREETING_SECONDS, stall: float = STALL_SECONDS
) -> Connection:
    """A connection to a listener's address, both ends having proved who they are.

    Raises AuthenticationError, ProtocolError (another version), PeerGoneError (nobody listens),
    TransferTimeoutError after `timeout` seconds for the network's part and GREETING_SECONDS for the rest.
    """
    scheme, where = _parsed(address, secret)
    try:
        if isinstance(where, bytes):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(where)
        else:
            sock = socket.create_connection(where, timeout)
    except TimeoutError:
        raise TransferTimeoutError(f"{address}: no connection within {timeout} seconds") from None
    except OSError as error:
        raise PeerGoneError(f"{address}: {error.strerror or error}") from None
    return _greet(scheme, sock, secret, stall, accepting=False, peer=address)


def _greet(
    scheme: str, sock: socket.socket, secret: bytes, stall: float, *, accepting: bool, peer: str = ""
) -> Connection:
    """The connection over a fresh socket, which is closed if there is none."""
    try:
        peer = peer or _name_of(scheme, sock)
        set_stall(sock, GREETING_SECONDS)
        if scheme == "unix":
            rings = exchange_rings(sock)
            return (
                StreamConnection(sock, peer, stall)
                if rings is None
                else RingConnection(sock, peer, rings, stall)
            )
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        prove(sock, secret, accepting=accepting)
        if scheme == "nixl":
            # Loaded where it is used: an extra.
            from headrace.worker.transfer.nixl import NixlConnection

            return NixlConnection(sock, peer, stall)
        return StreamConnection(sock, peer, stall)
    except BlockingIOError:
        sock.close()
        raise TransferTimeoutError(f"{peer}: no greeting within {GREETING_SECONDS} seconds") from None
    except OSError as error:
        sock.close()
        raise PeerGoneError(f"{peer}: {error.strerror or error}") from None
    except TransferError as error:
        sock.close()
        raise type(error)(f"{peer}: {error}") from None


def _parsed(address: str, secret: bytes) -> tuple[str, bytes | tuple[str, int]]:
    """The scheme, and what the system calls the place."""
    scheme, _, rest = address.partition(":")
    if scheme == "unix" and (not rest or rest.startswith("@")):
        return scheme, b"\0" + (rest[1:] or f"headrace-{secrets.token_hex(8)}").encode()
    host, _, port = rest.rpartition(":")
    if scheme in ("tcp", "nixl") and host and port.isdigit() and int(port) < 65536:
        if not secret:
            raise ProtocolError(f"{address}: needs a secret that both ends know")
        return scheme, (host.removeprefix("[").removesuffix("]"), int(port))
    raise ProtocolError(f"{address!r}: expected unix:@NAME, tcp:HOST:PORT or nixl:HOST:PORT")


def _listening(scheme: str, where: bytes | tuple[str, int], address: str) -> socket.socket:
    try:
        if isinstance(where, bytes):
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(where)
            sock.listen()
            return sock
        family = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(where, family=family)
    except OSError as error:
        raise PeerGoneError(f"cannot listen at {address}: {error.strerror or error}") from None


def _name_of(scheme: str, sock: socket.socket) -> str:
    with suppress(OSError):
        if scheme != "unix":
            host, port = sock.getpeername()[:2]
            return f"{scheme}:{host}:{port}"
    return f"{scheme}: peer"
