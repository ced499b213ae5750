"""HTTP as remotes and proxies speak it, well and badly; bytes as they stand on the wire."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.remotes.asking import run
from headrace.gateway.remotes import dialling
from headrace.gateway.remotes.connections import Connections
from headrace.gateway.remotes.errors import RemoteError
from headrace.gateway.remotes.http_connection import HttpConnection

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwater"


async def asked(reader: asyncio.StreamReader) -> bytes:
    """The next request's head, its body read."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"content-length: " in head:
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    return head


@asynccontextmanager
async def listening(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that talks so with whoever connects."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def saying(*responses: bytes, then_close: bool = False) -> Talk:
    """Answers each request with the next of these."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in responses:
            await asked(reader)
            writer.write(response)
        if not then_close:
            await reader.read()

    return talk


async def exchanged(connections: Connections) -> tuple[int, bytes]:
    response = await connections.post(b"{}", 5.0)
    body = b""
    while chunk := await response.read():
        body += chunk
    response.close()
    return response.status, body


def pool(port: int, scheme: str = "http", connect_timeout: float = 5.0) -> Connections:
    return Connections("far", f"{scheme}://127.0.0.1:{port}/v1", {"accept": "text/plain"}, connect_timeout)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(WHOLE, id="length"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwater\r\n0\r\n\r\n", id="chunks"
        ),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, id="after another response"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nwater", id="until the connection ends"),
    ],
)
def test_a_body_ends_as_its_response_says(response: bytes) -> None:
    async def work() -> tuple[int, bytes]:
        async with listening(saying(response, then_close=True)) as port:
            connections = pool(port)
            try:
                return await exchanged(connections)
            finally:
                await connections.close()

    assert run(work()) == (200, b"water")


@pytest.mark.parametrize(
    ("response", "code"),
    [
        pytest.param(b"", "remote_cut_off", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", "remote_cut_off", id="cut in the headers"),
        pytest.param(WHOLE[:-1], "remote_cut_off", id="cut in the body"),
        pytest.param(b"220 mail.example ready\r\n", "remote_garbage", id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "remote_garbage", id="a bad header"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2**17, "remote_garbage", id="endless headers"),
        pytest.param(
            b"HTTP/1.1 101 -\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "remote_garbage", id="an upgrade"
        ),
    ],
)
def test_a_broken_response_is_told_as_what_it_is(response: bytes, code: str) -> None:
    async def work() -> str | None:
        async with listening(saying(response, then_close=True)) as port:
            connections = pool(port)
            with pytest.raises(RemoteError) as caught:
                await exchanged(connections)
            await connections.close()
            return caught.value.code

    assert run(work()) == code


def test_a_connection_is_not_used_again_whose_other_side_closes_it_or_says_more_than_was_asked() -> None:
    async def work(response: bytes, then_close: bool) -> int:
        count = 0

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            count += 1
            await saying(response, then_close=then_close)(reader, writer)

        async with listening(talk) as port:
            connections = pool(port)
            for _ in range(3):
                assert await exchanged(connections) == (200, b"water")
                await asyncio.sleep(0.05)
            await connections.close()
        return count

    assert run(work(WHOLE, True)) == 3
    assert run(work(WHOLE + WHOLE, False)) == 3
    assert run(work(WHOLE.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"), False)) == 3


def test_kept_connections_that_the_other_side_closes_as_a_request_comes_cost_no_answer() -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(WHOLE)
        await asked(reader)  # and reads it no more

    async def work() -> None:
        async with listening(closing) as port:
            connections = pool(port)
            for _ in range(2):
                told = await asyncio.gather(*(exchanged(connections) for _ in range(20)))
                assert told == [(200, b"water")] * 20
            await connections.close()

    run(work())


def test_a_connection_that_breaks_in_the_middle_of_a_response_is_not_tried_again() -> None:
    async def breaking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(WHOLE)
        await asked(reader)
        writer.write(b"HTTP/1.1 200")

    async def work() -> str | None:
        async with listening(breaking) as port:
            connections = pool(port)
            await exchanged(connections)
            with pytest.raises(RemoteError) as caught:
                await exchanged(connections)
            await connections.close()
            return caught.value.code

    assert run(work()) == "remote_cut_off"


def test_a_response_that_is_closed_again_does_nothing_to_the_next_one_on_its_connection() -> None:
    async def work() -> None:
        async with listening(saying(WHOLE, WHOLE[:-1])) as port:
            connections = pool(port)
            first = await connections.post(b"{}", 5.0)
            while await first.read():
                pass
            first.close()
            second = await connections.post(b"{}", 5.0)
            assert await second.read() == b"wate"
            first.close()
            first.fail(RemoteError("late", code="remote_timeout"))
            reading = asyncio.create_task(second.read())
            await asyncio.sleep(0.05)
            assert not reading.done()
            reading.cancel()
            second.close()
            await connections.close()

    run(work())


def test_a_time_that_is_over_while_another_connection_is_made_ends_the_wait() -> None:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(WHOLE)
        await asked(reader)  # what comes over the kept connection is lost

    async def work() -> str | None:
        async with listening(closing) as port:
            connections = pool(port)
            await exchanged(connections)
            response = await connections.send(b"{}")
            connect = connections._dialler.connect

            async def slowly() -> HttpConnection:
                await asyncio.sleep(0.2)
                return await connect()

            connections._dialler.connect = slowly  # type: ignore[method-assign]
            waiting = asyncio.create_task(response.begun())
            await asyncio.sleep(0.1)
            response.fail(RemoteError("late", code="remote_timeout"))
            with pytest.raises(RemoteError) as caught:
                await waiting
            response.close()
            await connections.close()
            return caught.value.code

    assert run(work()) == "remote_timeout"


def test_a_long_body_that_nobody_reads_waits_at_the_other_side() -> None:
    size = 30_000_000

    async def work() -> int:
        sent = 0

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await asked(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(size // 100_000):
                writer.write(b"x" * 100_000)
                await writer.drain()
                sent += 100_000

        async with listening(talk) as port:
            connections = pool(port)
            response = await connections.post(b"{}", 5.0)
            await asyncio.sleep(0.3)
            unread = sent
            received = 0
            while chunk := await response.read():
                received += len(chunk)
            assert received == size
            response.close()
            await connections.close()
            return unread

    assert run(work()) < size // 2


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no openssl makes certificates here")
    return certificate, key


@pytest.mark.parametrize("refused", [False, True])
def test_the_environments_proxy_tunnels_tls(
    refused: bool, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "_trusting", lambda: ssl.create_default_context(cafile=certificate[0]))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    heads: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asked(reader)
        heads.append(head)
        if refused:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        host, port = head.split()[1].decode().split(":")
        there, onwards = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
            sink.close()

        await asyncio.gather(copy(reader, onwards), copy(there, writer))

    async def work() -> tuple[int, bytes]:
        async with listening(saying(WHOLE, WHOLE), tls) as port, listening(proxy) as proxy_port:
            monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{proxy_port}")
            monkeypatch.setenv("no_proxy", "")
            connections = pool(port, "https")
            try:
                await exchanged(connections)
                return await exchanged(connections)
            finally:
                await connections.close()

    if refused:
        with pytest.raises(RemoteError, match="its proxy refuses, with status 407") as caught:
            run(work())
        assert caught.value.code == "remote_unreachable" and "secret" not in str(caught.value)
    else:
        assert run(work()) == (200, b"water")
    assert len(heads) == 1 and b"proxy-authorization: Basic bWU6c2VjcmV0\r\n" in heads[0]
