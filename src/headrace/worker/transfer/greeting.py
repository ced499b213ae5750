"""The first bytes on a connection: both ends name their version, and prove that they may speak to each other.

Over TCP each end sends a nonce and answers the other's with an HMAC-SHA256 by the shared secret, which never
travels. That says who connects; what follows is checksummed, not encrypted: let it cross no network that is
not trusted. Over a Unix socket the system says which user the other end runs as.
"""

from __future__ import annotations

import array
import hmac
import os
import secrets
import socket
import struct

from headrace.worker.transfer.errors import AuthenticationError, ProtocolError
from headrace.worker.transfer.ring import DESCRIPTORS, Ring
from headrace.worker.transfer.stream import receive_all, send_all

VERSION = 2
GREETING_SECONDS = 5.0
"""For each step of it; a whole greeting is less than 200 bytes."""
_MAGIC = b"headrace-transfer"
_HELLO = struct.Struct(f"<{len(_MAGIC)}sH32s")
_PROOF_BYTES = 32
_UCRED = struct.Struct("@iII")


def prove(sock: socket.socket, secret: bytes, *, accepting: bool) -> None:
    """Mutual proof over TCP. Raises AuthenticationError, ProtocolError, OSError.

    The end that accepts sends its proof only after it has verified the other's: it tells nothing to whoever
    does not know the secret.
    """
    nonce = secrets.token_bytes(32)
    hello = _hello(nonce)
    send_all(sock, hello)
    theirs = _received(sock, _HELLO.size)
    _check_hello(theirs)
    transcript = theirs + hello if accepting else hello + theirs  # the connecting end's first

    def proof(side: bytes) -> bytes:
        return hmac.digest(secret, side + transcript, "sha256")

    mine, other = (b"accepting", b"connecting") if accepting else (b"connecting", b"accepting")
    if not accepting:
        send_all(sock, proof(mine))
    try:
        found = _received(sock, _PROOF_BYTES)
    except ConnectionResetError:
        raise AuthenticationError("refused: is it the same secret on both sides?") from None
    if not hmac.compare_digest(found, proof(other)):
        raise AuthenticationError("the other end does not know the secret")
    if accepting:
        send_all(sock, proof(mine))


def exchange_rings(sock: socket.socket) -> tuple[Ring, Ring] | None:
    """Over a Unix socket: (for what this end sends, for what it receives); None where a system has no memfd.

    Raises AuthenticationError, ProtocolError, OSError.
    """
    _check_user(sock)
    mine = Ring.create() if hasattr(os, "memfd_create") else None
    theirs: tuple[int, ...] = ()
    try:
        sent = array.array("i", mine.descriptors if mine else ())
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)] if sent else []
        sock.sendmsg([_hello(b"")], ancillary)
        hello, received, _, _ = socket.recv_fds(
            sock, _HELLO.size, DESCRIPTORS, socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC
        )
        theirs = tuple(received)
        if len(hello) < _HELLO.size:
            raise ConnectionResetError("it closed the connection")
        _check_hello(hello)
        if mine is None or len(theirs) != DESCRIPTORS:
            _close(theirs, mine)
            return None
        return mine, Ring(*theirs)
    except BaseException:
        _close(theirs, mine)
        raise


def _hello(nonce: bytes) -> bytes:
    return _HELLO.pack(_MAGIC, VERSION, nonce)


def _check_hello(hello: bytes) -> None:
    magic, version, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise ProtocolError("the other end is no Headrace worker")
    if version != VERSION:
        raise ProtocolError(
            f"the other end speaks version {version} of the transfer protocol, this one {VERSION}"
        )


def _check_user(sock: socket.socket) -> None:
    _, user, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if user != os.geteuid():
        raise AuthenticationError(f"the other end runs as user {user}, this one as {os.geteuid()}")


def _received(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    receive_all(sock, memoryview(data))
    return bytes(data)


def _close(descriptors: tuple[int, ...], ring: Ring | None) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    if ring is not None:
        ring.close()
