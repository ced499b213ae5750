"""Connections to a remote: used again, closed when left, and bound to no task."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.remotes.asking import answer, remote, request, run
from gateway.remotes.upstream import (
    WORDS,
    Exchange,
    Upstream,
    anthropic_answer,
    chunk,
    openai_answer,
    refusing,
    stalling,
)
from headrace.gateway.answering import Piece
from headrace.gateway.deadline import Deadline
from headrace.gateway.errors import UnavailableError
from headrace.gateway.remotes.dialling import proxy_for
from headrace.gateway.remotes.errors import RemoteError

MAKE_CERTIFICATE = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]


async def trickling(exchange: Exchange) -> None:
    """A word every few milliseconds, without an end."""
    await exchange.begin()
    while True:
        await exchange.event(chunk(content="drip "))
        await asyncio.sleep(0.01)


async def eventually_left(upstream: Upstream) -> None:
    for _ in range(200):
        if upstream.left and not upstream.open:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the connection is still open")


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_one_connection_serves_one_answer_after_another(api: str) -> None:
    async def work() -> int:
        async with Upstream(openai_answer() if api == "openai" else anthropic_answer()).serving() as upstream:
            asked = remote(upstream, api=api)
            for _ in range(5):
                assert (await answer(asked, request())).text == "".join(WORDS)
            await asked.close()
            return upstream.connections

    assert run(work()) == 1


def test_answers_at_the_same_time_have_connections_of_their_own() -> None:
    async def work() -> int:
        async with Upstream(openai_answer()).serving() as upstream:
            asked = remote(upstream)
            told = await asyncio.gather(*(answer(asked, request()) for _ in range(20)))
            assert {one.text for one in told} == {"".join(WORDS)}
            await asked.close()
            return upstream.connections

    assert run(work()) == 20


def test_a_refusal_leaves_the_connection_usable() -> None:
    async def work() -> int:
        async with Upstream(refusing(429)).serving() as upstream:
            asked = remote(upstream)
            for _ in range(3):
                with pytest.raises(RemoteError):
                    await answer(asked, request())
            await asked.close()
            return upstream.connections

    assert run(work()) == 1


def test_what_was_refused_has_no_tokens() -> None:
    async def work() -> int:
        async with Upstream(refusing(500)).serving() as upstream:
            asked = remote(upstream)
            async with asked.ask("1", request()) as answer_run:
                with pytest.raises(RemoteError):
                    await answer_run.__anext__()
                total = answer_run.usage().total_tokens
            await asked.close()
            return total

    assert run(work()) == 0


def test_leaving_early_closes_the_connection() -> None:
    async def work() -> None:
        async with Upstream(trickling).serving() as upstream:
            asked = remote(upstream)
            async with asked.ask("1", request()) as answer_run:
                await answer_run.__anext__()
            await eventually_left(upstream)
            await asked.close()

    run(work())


@pytest.mark.parametrize("script", [stalling, trickling])
def test_a_cancelled_request_closes_the_connection(script: object) -> None:
    async def work() -> None:
        async with Upstream(script).serving() as upstream:  # type: ignore[arg-type]
            asked = remote(upstream)
            task = asyncio.create_task(answer(asked, request()))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually_left(upstream)
            await asked.close()

    run(work())


def test_the_callers_deadline_is_told_from_the_remotes() -> None:
    async def work() -> None:
        async with Upstream(stalling).serving() as upstream:
            asked = remote(upstream)
            with pytest.raises(UnavailableError) as caught:
                async with Deadline(0.1):
                    await answer(asked, request())
            assert not isinstance(caught.value, RemoteError)
            await eventually_left(upstream)
            await asked.close()

    run(work())


def test_each_piece_may_be_waited_for_by_another_task() -> None:
    """Also by one that gives up waiting: nothing is lost with it."""

    async def slowly(exchange: Exchange) -> None:
        await exchange.begin()
        for word in WORDS:
            await asyncio.sleep(0.05)
            await exchange.event(chunk(content=word))
        await exchange.event(chunk(reason="stop"))
        await exchange.end()

    async def work() -> list[str]:
        async with Upstream(slowly).serving() as upstream:
            asked = remote(upstream)
            question = asked.ask("1", request())
            answer_run = await asyncio.create_task(question.__aenter__())
            words = []
            while True:

                async def next_piece() -> Piece | None:
                    return await anext(answer_run, None)

                waiting = asyncio.create_task(next_piece())
                await asyncio.wait({waiting}, timeout=0.02)
                if not waiting.done():
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
                    continue
                if (piece := waiting.result()) is None:
                    break
                words.append(piece[2].text)
            await asyncio.create_task(question.__aexit__(None, None, None))
            await asked.close()
            return words

    assert run(work()) == [*WORDS, ""]


def test_a_stall_is_noticed_whichever_task_waits() -> None:
    async def once(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event(chunk(content="Water"))
        await exchange.until_left()

    async def work() -> None:
        async with Upstream(once).serving() as upstream:
            asked = remote(upstream, idle_timeout=0.1)
            question = asked.ask("1", request())
            answer_run = await asyncio.create_task(question.__aenter__())
            await asyncio.create_task(answer_run.__anext__())  # type: ignore[arg-type]
            with pytest.raises(RemoteError):
                await asyncio.create_task(answer_run.__anext__())  # type: ignore[arg-type]
            await question.__aexit__(None, None, None)
            await eventually_left(upstream)
            await asked.close()

    run(work())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such timer")
def test_a_remote_that_reads_nothing_of_a_long_request_costs_no_socket_for_long() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            port = deaf.getsockname()[1]
            upstream = Upstream(stalling)
            upstream.url = f"http://127.0.0.1:{port}"
            asked = remote(upstream, first_token_timeout=0.2, connect_timeout=0.3)
            long = [{"role": "user", "content": "x" * 20_000_000}]
            with pytest.raises(RemoteError):
                await answer(asked, request(messages=long))
            taken, _ = deaf.accept()
            with taken:
                taken.settimeout(0)
                for _ in range(300):
                    if not connected_to(port):
                        break
                    await asyncio.sleep(0.02)
                assert not connected_to(port)
            await asked.close()

    run(work())


def connected_to(port: int) -> bool:
    """Whether this process has a connection to the port that was not accepted here."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    established = "01"
    return any(row[2].endswith(f":{port:04X}") and row[3] == established for row in rows)


def test_the_environments_proxy_is_asked_for_the_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> tuple[str, str]:
        async with Upstream(openai_answer()).serving() as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv("no_proxy", "near.example")
            asked = remote(proxy, url="http://far.example/v1")
            await answer(asked, request())
            await asked.close()
            return proxy.exchanges[0].path, proxy.exchanges[0].headers["host"]

    assert run(work()) == ("http://far.example/v1/chat/completions", "far.example")
    assert proxy_for("http://near.example/v1") is None


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_cannot_be_reached_is_told_as_such_and_its_address_to_the_operator_alone(
    scheme: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        monkeypatch.setenv(f"{scheme}_proxy", f"http://me:secret@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")

        async def work() -> None:
            asked = remote(Upstream(openai_answer()), url=f"{scheme}://far.example/v1")
            try:
                await answer(asked, request())
            finally:
                await asked.close()

        with pytest.raises(RemoteError, match="its proxy cannot be reached") as caught:
            run(work())
    assert caught.value.code == "remote_unreachable" and "127.0.0.1" not in str(caught.value)
    assert f"far is asked by the environment's proxy 127.0.0.1:{port}" in caplog.text
    assert "secret" not in caplog.text


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = subprocess.run(
        [*MAKE_CERTIFICATE, "-keyout", key, "-out", certificate],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no openssl makes certificates here")

    async def work() -> RemoteError:
        async with Upstream(openai_answer()).serving(certificate, key) as upstream:
            asked = remote(upstream)
            with pytest.raises(RemoteError) as caught:
                await answer(asked, request())
            await asked.close()
            assert not upstream.exchanges
            return caught.value

    error = run(work())
    assert error.code == "remote_unreachable" and "certificate" in str(error)


def test_a_server_without_remotes_loads_no_http_client() -> None:
    program = "import sys, headrace.gateway.remotes.remote as r; sys.exit('aiohappyeyeballs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
