"""Workers that join from elsewhere: who may, what becomes of streams, and how both sides find back.

The two workers of most tests outlive their gateways: every test is a gateway of its own at the same port.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq

from fleet.joining import (
    BEAT,
    ENGINE,
    PATIENCE,
    Told,
    answers,
    gateway,
    is_idle,
    joining,
    requests,
    settings,
    states,
    until,
)
from headrace.errors import ConfigError
from headrace.fleet import Fleet, State
from headrace.worker.joined_channel import JoinedChannel, RefusedError
from headrace.worker.messages import PROTOCOL_VERSION, Hello, encode
from headrace.worker.secret import Keys, new_secret, read_keys
from headrace.worker.session import Session
from ports import free_port
from system.test_serve import eventually, serving

pytest.importorskip("headrace._native", reason="the native module is not built; `make setup` builds it")

PAIR = "anna", "bert"
LONG = requests(6, 80)


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secret") / "secret"
    file.write_text(new_secret() + "\n")
    return file


@pytest.fixture(scope="module")
def port(secret: Path, synthetic_model: Path) -> Iterator[int]:
    """Where the workers of PAIR look for a gateway."""
    port = free_port()
    with ExitStack() as stack:
        for name in PAIR:
            stack.enter_context(joining(f"127.0.0.1:{port}", secret, synthetic_model, name))
        yield port


@pytest.fixture(scope="module")
def alone(synthetic_model: Path) -> list[list[Told]]:
    """The answers to LONG of one worker that nothing happens to."""

    async def compute() -> list[list[Told]]:
        async with Fleet(settings(synthetic_model)) as fleet:
            return await answers(fleet, LONG)

    return asyncio.run(compute())


WithGateway = Callable[[Callable[[Fleet], Awaitable[None]]], None]


@pytest.fixture
def with_gateway(port: int, secret: Path, synthetic_model: Path) -> WithGateway:
    """Runs a test's coroutine on the fleet of a gateway that both workers of PAIR have joined."""

    def run(test: Callable[[Fleet], Awaitable[None]]) -> None:
        async def body() -> None:
            async with gateway(port, read_keys(secret), synthetic_model, PAIR) as fleet:
                await asyncio.wait_for(test(fleet), 60)

        asyncio.run(body())

    return run


def test_workers_join_and_compute_what_one_worker_would(
    with_gateway: WithGateway, alone: list[list[Told]]
) -> None:
    async def test(fleet: Fleet) -> None:
        assert states(fleet) == dict.fromkeys(PAIR, State.READY)
        assert await answers(fleet, LONG) == alone
        computed = {name: stats.generated_tokens for name, stats in (await fleet.stats(PATIENCE)).items()}
        assert all(computed[name] > 0 for name in PAIR)
        assert await is_idle(fleet)

    with_gateway(test)


def test_streams_of_a_worker_that_is_stopped_go_on_and_it_comes_back(
    with_gateway: WithGateway, alone: list[list[Told]]
) -> None:
    async def test(fleet: Fleet) -> None:
        stopped = {replica.name: replica for replica in fleet.health()}["anna"]
        assert stopped.pid is not None
        asked = asyncio.create_task(answers(fleet, LONG))
        await asyncio.sleep(0.1)
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            await until(lambda: states(fleet)["anna"] is State.LOST)
            assert await asked == alone
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        await until(lambda: states(fleet).get("anna") is State.READY)
        again = [msgspec.structs.replace(message, id=f"again {message.id}") for message in LONG]
        assert await answers(fleet, again) == alone
        assert await is_idle(fleet)

    with_gateway(test)


def test_streams_of_a_worker_that_is_killed_go_on(
    with_gateway: WithGateway, alone: list[list[Told]], secret: Path, port: int, synthetic_model: Path
) -> None:
    async def test(fleet: Fleet) -> None:
        with joining(f"127.0.0.1:{port}", secret, synthetic_model, "victim") as victim:
            await until(lambda: states(fleet).get("victim") is State.READY)
            asked = asyncio.create_task(answers(fleet, LONG))
            await asyncio.sleep(0.1)
            victim.process.kill()
            assert await asked == alone
            await until(lambda: states(fleet)["victim"] is State.LOST)
            assert await is_idle(fleet)

    with_gateway(test)


@pytest.mark.parametrize("patience", ["20", "0"])
def test_a_worker_told_to_end_lets_its_streams_end_there_or_elsewhere(
    patience: str,
    with_gateway: WithGateway,
    alone: list[list[Told]],
    secret: Path,
    port: int,
    synthetic_model: Path,
) -> None:
    async def test(fleet: Fleet) -> None:
        with joining(
            f"127.0.0.1:{port}", secret, synthetic_model, "leaver", "--drain-seconds", patience
        ) as leaver:
            await until(lambda: states(fleet).get("leaver") is State.READY)
            asked = asyncio.create_task(answers(fleet, LONG))
            await asyncio.sleep(0.1)
            leaver.process.terminate()
            assert await asked == alone
            status, said = await asyncio.to_thread(leaver.ended)
            assert status == 0, said
            await until(lambda: "leaver" not in states(fleet))

    with_gateway(test)


def test_a_prompt_computed_by_one_host_is_answered_by_another(
    with_gateway: WithGateway, secret: Path, port: int, synthetic_model: Path
) -> None:
    async def test(fleet: Fleet) -> None:
        asked = [msgspec.structs.replace(requests(1, 20)[0], prompt=[i * i % 250 for i in range(350)])]
        whole = await answers(fleet, asked)
        with ExitStack() as stack:
            for role in ("prefill", "decode"):
                stack.enter_context(
                    joining(f"127.0.0.1:{port}", secret, synthetic_model, role, "--role", role)
                )
            await until(lambda: states(fleet).keys() >= {"prefill", "decode"})
            await until(lambda: all(state is State.READY for state in states(fleet).values()))
            for replica in list(fleet.replicas):  # the others leave what there is to them
                if replica.name in PAIR:
                    replica.drain()
            assert await answers(fleet, asked) == whole
            stats = await fleet.stats(PATIENCE)
        assert (stats["prefill"].generated_tokens, stats["decode"].generated_tokens) == (0, 20)
        assert stats["decode"].imported_tokens >= 300

    with_gateway(test)


def test_workers_with_nothing_to_do_give_signs_of_life(with_gateway: WithGateway) -> None:
    async def test(fleet: Fleet) -> None:
        for _ in range(30):
            await asyncio.sleep(BEAT / 2)
            assert states(fleet) == dict.fromkeys(PAIR, State.READY)

    with_gateway(test)


def test_a_name_that_is_taken_gets_a_number(
    with_gateway: WithGateway, secret: Path, port: int, synthetic_model: Path
) -> None:
    async def test(fleet: Fleet) -> None:
        with joining(f"127.0.0.1:{port}", secret, synthetic_model, "anna"):
            await until(lambda: states(fleet).get("anna-2") is State.READY)

    with_gateway(test)


def test_workers_outlive_a_gateway_that_is_killed(port: int, secret: Path, synthetic_model: Path) -> None:
    options = "--replicas", "0", "--listen-workers", f"127.0.0.1:{port}", "--secret-file", str(secret)
    beat = "--worker-heartbeat", str(BEAT)
    seen = []
    for _ in range(2):
        with serving(synthetic_model, *options, *beat, *ENGINE) as server:
            assert "waiting for a worker" in server.told
            eventually(lambda server=server: len(server.health()["workers"]) == 2)
            eventually(lambda server=server: all(w["state"] == "ready" for w in server.health()["workers"]))
            pids = sorted(worker["pid"] for worker in server.health()["workers"])
            seen.append((pids, server.chat().json()["choices"]))
            with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
                body = b'{"model": "synthetic", "prompt": "a", "max_tokens": 300, "stream": true}'
                head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body)
                assert client.recv(10)
                server.process.kill()
    assert seen[0] == seen[1]


def test_what_was_computed_for_a_gateway_that_is_gone_is_forgotten(with_gateway: WithGateway) -> None:
    async def test(fleet: Fleet) -> None:
        assert await is_idle(fleet)

    with_gateway(test)


def test_a_worker_with_another_secret_is_not_admitted_and_told_so(
    with_gateway: WithGateway, port: int, synthetic_model: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(new_secret())

    async def test(fleet: Fleet) -> None:
        with joining(f"127.0.0.1:{port}", wrong, synthetic_model, "mallory") as worker:
            status, said = await asyncio.to_thread(worker.ended)
        assert status == 1
        assert "it does not know this worker's secret, or is no gateway for workers" in said.splitlines()[-1]
        assert states(fleet).keys() == {*PAIR}

    with_gateway(test)


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_does_not_know_the_secret_gets_no_answer(
    encrypted: bool, with_gateway: WithGateway, port: int, secret: Path
) -> None:
    """Not even who has learned the gateway's public key."""

    def knock() -> int:
        with zmq.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = 0
            if encrypted:
                client.curve_serverkey = read_keys(secret).gateway.public
                client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
            client.connect(f"tcp://127.0.0.1:{port}")
            client.send(encode(hello()))
            return int(client.poll(500))

    async def test(fleet: Fleet) -> None:
        assert await asyncio.to_thread(knock) == 0
        assert states(fleet).keys() == {*PAIR}

    with_gateway(test)


def hello(version: int = PROTOCOL_VERSION, model: str = "synthetic") -> Hello:
    return Hello(version=version, name="old", instance="i", model=model, role="both", pid=1)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (hello(version=3), f"old speaks version 3, this gateway {PROTOCOL_VERSION}"),
        (hello(model="another"), "old has the model 'another', this gateway serves 'synthetic'"),
    ],
)
def test_a_worker_that_cannot_serve_here_is_refused_by_name_on_both_sides(
    said: Hello,
    why: str,
    with_gateway: WithGateway,
    port: int,
    secret: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def join() -> None:
        channel = JoinedChannel(f"127.0.0.1:{port}", read_keys(secret), said)
        try:
            channel.join()
        finally:
            channel.close()

    async def test(fleet: Fleet) -> None:
        with pytest.raises(RefusedError, match=why):
            await asyncio.to_thread(join)

    with caplog.at_level(logging.WARNING):
        with_gateway(test)
    assert why in caplog.text


def test_a_worker_with_less_context_than_the_others_is_refused(
    with_gateway: WithGateway, port: int, secret: Path
) -> None:
    async def test(fleet: Fleet) -> None:
        small = msgspec.structs.replace(fleet.facts, context_length=100)

        def join() -> None:
            channel = JoinedChannel(f"127.0.0.1:{port}", read_keys(secret), hello())
            try:
                channel.join()
                channel.ready(small)
                while True:
                    channel.wait()
                    assert not list(channel.received())
            finally:
                channel.close()

        with pytest.raises(RefusedError, match="context of 100 tokens, the others for 400"):
            await asyncio.to_thread(join)

    with_gateway(test)


def test_messages_that_are_none_are_dropped(with_gateway: WithGateway, port: int, secret: Path) -> None:
    async def test(fleet: Fleet) -> None:
        keys = read_keys(secret)
        with zmq.Context() as context:
            session = Session(context, f"127.0.0.1:{port}", keys)
            for data in (b"", b"\xc1", b"\x91\xa5Hello", encode(("Hello", PROTOCOL_VERSION, 1))):
                session._socket.send(data)
            await asyncio.sleep(0.3)
            session.close()
        assert states(fleet).keys() == {*PAIR}
        assert len(await answers(fleet, requests(1, 5, "after"))) == 1

    with_gateway(test)


def test_a_worker_says_when_it_cannot_find_a_gateway_and_ends_at_a_signal(
    secret: Path, synthetic_model: Path
) -> None:
    with joining("127.0.0.1:1", secret, synthetic_model, "lost") as worker:
        assert worker.process.stderr is not None
        line = worker.process.stderr.readline()
        assert "the gateway at 127.0.0.1:1: there is no connection; trying again" in line
        worker.process.terminate()
        assert worker.ended()[0] == 0


def test_short_secrets_and_missing_files_are_refused(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("x" * 31)
    with pytest.raises(ConfigError, match="31 characters and must have at least 32"):
        read_keys(short)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")


def test_a_secret_makes_the_same_keys_everywhere_and_another_makes_others(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_text(new_secret())
    one, two = map(read_keys, files)
    assert one == read_keys(files[0])
    made = {key for keys in (one, two) for key in secrets_of(keys)}
    assert len(made) == 10


def secrets_of(keys: Keys) -> tuple[bytes, ...]:
    return keys.gateway.public, keys.gateway.secret, keys.worker.public, keys.worker.secret, keys.blocks
