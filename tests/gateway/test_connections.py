"""Connections that would wear a server out: too slow, too large, too many, or never read."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.certificates import self_signed
from gateway.running import RunningGateway, running
from gateway.test_lifecycle import eventually
from headrace.errors import ConfigError
from headrace.gateway.connections import ConnectionLimits
from headrace.gateway.server import ServerOptions, Tls

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
LIMITS = ConnectionLimits(
    connections=8, header_bytes=4096, header_seconds=0.5, body_seconds=0.5, idle_seconds=2, write_seconds=1
)


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningGateway]:
    """A gateway with little patience."""
    with running(options=ServerOptions(LIMITS)) as server:
        yield server


@contextlib.contextmanager
def connected(server: RunningGateway) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        yield raw


def answer(raw: socket.socket) -> tuple[int, str]:
    """Status and error code of what comes until the server closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := raw.recv(4096):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def drip(raw: socket.socket, text: bytes) -> None:
    """Sends a byte now and then, until the server has enough."""
    with contextlib.suppress(OSError):
        for byte in text:
            raw.sendall(bytes([byte]))
            time.sleep(0.05)


def test_headers_that_come_too_slowly_are_not_waited_for(strict: RunningGateway) -> None:
    with connected(strict) as raw:
        began = time.monotonic()
        drip(raw, POST * 3)
        assert time.monotonic() - began < 4
    with connected(strict) as raw:
        raw.sendall(POST)
        assert answer(raw) == (408, "request_too_slow")


def test_a_connection_that_sends_nothing_is_closed(strict: RunningGateway) -> None:
    with connected(strict) as raw:
        assert answer(raw)[0] == 408


def test_a_body_that_comes_too_slowly_is_not_waited_for(strict: RunningGateway) -> None:
    with connected(strict) as raw:
        raw.sendall(POST + b"Content-Length: 500\r\n\r\n{")
        assert answer(raw) == (408, "request_too_slow")


def test_an_idle_connection_is_closed_after_its_time(strict: RunningGateway) -> None:
    with connected(strict) as raw:
        for pause in (0.7, 0):  # longer than headers may take
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            received = b""
            while not received.endswith(b"}"):
                data = raw.recv(4096)
                assert data, "it was closed too soon"
                received += data
            time.sleep(pause)
        assert raw.recv(4096) == b""


def test_a_request_that_is_computed_for_long_is_not_cut_off() -> None:
    with running(options=ServerOptions(LIMITS), step_seconds=0.05) as server:
        assert len(server.complete(max_tokens=50).json()["choices"][0]["text"]) == 50


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
def test_headers_that_are_too_large_are_refused(strict: RunningGateway, end: bytes) -> None:
    for head in (b"X-Long: " + b"x" * 5000, b"A: b\r\n" * 1000):
        with connected(strict) as raw:
            raw.sendall(POST + head.removesuffix(b"\r\n") + end)
            assert answer(raw) == (431, "headers_too_large")


def test_a_path_that_is_too_long_is_refused(strict: RunningGateway) -> None:
    with connected(strict) as raw:
        raw.sendall(b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer(raw) == (431, "headers_too_large")


def test_garbage_is_answered_in_openais_shape(strict: RunningGateway) -> None:
    with connected(strict) as raw:
        raw.sendall(b"\x16\x03\x01 garbage\r\n\r\n")
        assert answer(raw) == (400, None)


def test_connections_above_the_limit_are_turned_away() -> None:
    with (
        running(options=ServerOptions(ConnectionLimits(connections=3))) as server,
        contextlib.ExitStack() as held,
    ):
        for _ in range(3):
            held.enter_context(connected(server))
        with connected(server) as raw:
            assert answer(raw) == (503, "too_many_connections")
        held.close()
        eventually(lambda: _healthy(server))


def _healthy(server: RunningGateway) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{server.url}/health").status_code == 200
    return False


def test_a_client_that_does_not_read_its_stream_is_cut_off_and_holds_up_nobody() -> None:
    limits = ConnectionLimits(write_seconds=1)
    with running(options=ServerOptions(limits), step_seconds=0.001, max_queue=500) as server:
        body = json.dumps(
            {"model": "fake", "prompt": ["Hi"] * 100, "max_tokens": 500, "stream": True, "logprobs": 20}
        ).encode()
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", server.port))
            raw.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            eventually(lambda: len(server.engine.submitted) == 100)
            assert server.complete(max_tokens=1).status_code == 200
            eventually(lambda: server.gateway.admission.admitted == 0, 30)
            received = b""
            with contextlib.suppress(OSError):
                while data := raw.recv(65536):
                    received += data
            assert b"[DONE]" not in received


def test_tls_by_files(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path, "localhost", "IP:127.0.0.1")
    with running(options=ServerOptions(tls=certificate)) as server:
        verify = ssl.create_default_context(cafile=str(certificate.cert))
        with httpx.Client(verify=verify, base_url=f"https://127.0.0.1:{server.port}") as client:
            assert client.get("/health").status_code == 200
            body = {"model": "fake", "prompt": "Hi", "max_tokens": 5, "stream": True}
            assert client.post("/v1/completions", json=body).text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/health")


def test_files_that_are_no_certificate_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"--tls-cert: there is no file .*absent.pem"):
        Tls(tmp_path / "absent.pem", broken).load()
    with pytest.raises(ConfigError, match=r"--tls-cert .*broken.pem .* do not load"):
        Tls(broken, broken).load()
