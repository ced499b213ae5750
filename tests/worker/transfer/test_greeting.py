"""Who may connect: nobody without the secret or of another version, and none for long without a word."""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest

from headrace.worker.transfer.connection import Connection
from headrace.worker.transfer.errors import AuthenticationError, PeerGoneError, ProtocolError
from headrace.worker.transfer.listener import MAX_GREETING, Listener, connect

SECRET = b"of both ends"
HELLO_BYTES = 51


@pytest.fixture
def served() -> list[str]:
    return []


@pytest.fixture
def listener(served) -> Iterator[Listener]:
    def answer(connection: Connection) -> None:
        served.append(connection.peer)
        connection.send(b"welcome")

    listener = Listener("tcp:127.0.0.1:0", answer, secret=SECRET)
    yield listener
    listener.close()


def port_of(listener: Listener) -> tuple[str, int]:
    return "127.0.0.1", int(listener.address.rpartition(":")[2])


def welcomed(listener: Listener) -> bool:
    with connect(listener.address, secret=SECRET) as connection:
        return connection.receive(timeout=5).header == b"welcome"


def test_who_has_another_secret_is_refused_and_told(listener, served):
    with pytest.raises(AuthenticationError, match="same secret"):
        connect(listener.address, secret=b"of one end")
    assert welcomed(listener) and len(served) == 1


def test_an_impostor_that_accepts_everyone_is_refused():
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            sock, _ = server.accept()
            with sock:
                hello = sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
                sock.sendall(hello)  # as if it were its own: a reflection
                heard.extend(hello + sock.recv(32, socket.MSG_WAITALL))
                sock.sendall(heard[-32:])

        thread = Thread(target=accept)
        thread.start()
        with pytest.raises(AuthenticationError):
            connect(f"tcp:127.0.0.1:{server.getsockname()[1]}", secret=SECRET)
        thread.join()
    assert SECRET not in heard and hmac.digest(SECRET, b"", "sha256") not in heard


def test_another_version_is_refused_by_number():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            sock, _ = server.accept()
            with sock:
                sock.sendall(b"headrace-transfer" + (7).to_bytes(2, "little") + bytes(32))
                sock.recv(HELLO_BYTES)

        thread = Thread(target=accept)
        thread.start()
        with pytest.raises(ProtocolError, match="version 7"):
            connect(f"tcp:127.0.0.1:{server.getsockname()[1]}", secret=SECRET)
        thread.join()


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 4, bytes(100), b""], ids=["HTTP", "zeros", "nothing"]
)
def test_strangers_are_shown_the_door(listener, served, first):
    with socket.create_connection(port_of(listener), timeout=5) as sock, suppress(OSError):
        sock.sendall(first)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1000):
            pass
    assert welcomed(listener) and len(served) == 1


def test_who_says_nothing_is_closed_and_there_are_never_many(listener, served, monkeypatch):
    monkeypatch.setattr("headrace.worker.transfer.listener.GREETING_SECONDS", 2.0)
    silent = [socket.create_connection(port_of(listener)) for _ in range(MAX_GREETING + 5)]
    time.sleep(0.2)
    with pytest.raises((PeerGoneError, AuthenticationError)):
        connect(listener.address, secret=SECRET)
    until = time.monotonic() + 20
    while not served:
        assert time.monotonic() < until, "nobody makes room"
        with suppress(PeerGoneError, AuthenticationError):
            assert welcomed(listener)
    for sock in silent:
        sock.close()
    assert len(served) == 1


def test_random_bytes_never_reach_the_handler(listener, served):
    for size in (1, HELLO_BYTES - 1, HELLO_BYTES + 32, 5000):
        with socket.create_connection(port_of(listener)) as sock:
            sock.sendall(secrets.token_bytes(size))
    assert welcomed(listener) and len(served) == 1


def test_a_unix_name_says_that_nobody_listens():
    with pytest.raises(PeerGoneError, match="refused"):
        connect("unix:@headrace-nobody")
