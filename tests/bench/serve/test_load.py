"""The client on real sockets, against servers that answer by script."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from bench.serve.scripted import HEAD, TOKEN, WHOLE, scripted
from headrace.bench.serve.client import Client
from headrace.bench.serve.load import closed_loop, open_loop
from headrace.bench.serve.record import Record
from headrace.bench.serve.target import Target
from headrace.bench.serve.workloads import Workload


def put(target: Target, requests: int, *, concurrency: int = 2, timeout: float = 10.0) -> list[Record]:
    async def load() -> list[Record]:
        client = Client(target, timeout)
        try:
            return await closed_loop(client, Workload().sessions(requests), concurrency, lambda record: None)
        finally:
            client.close()

    return uvloop.run(load())


def test_a_closed_loop_uses_one_connection_for_each_client():
    with scripted(WHOLE) as (server, target):
        records = put(target, 12, concurrency=3)
    assert [record.failure for record in records] == [None] * 12
    assert all(record.output_tokens == 2 and len(record.chunk_times) == 2 for record in records)
    assert server.connections == 3
    assert server.most_at_once <= 3


def test_a_connection_that_the_server_closes_is_replaced():
    closing = WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
    with scripted(closing) as (server, target):
        records = put(target, 4, concurrency=1)
    assert [record.failure for record in records] == [None] * 4
    assert server.connections == 4


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\n{}", "http_429"),
        (HEAD + TOKEN, "disconnected"),
        (b"", "disconnected"),
        (b"garbage\r\n\r\n", "malformed"),
        (HEAD + b"0\r\n\r\n", "incomplete"),
    ],
)
def test_a_failure_is_counted_by_its_kind_and_the_load_goes_on(answer, kind):
    with scripted(answer, WHOLE) as (_, target):
        records = put(target, 3, concurrency=1)
    assert [record.failure for record in records] == [kind, None, None]


def test_an_answer_that_takes_too_long_is_given_up():
    with scripted(None) as (_, target):
        (record,) = put(target, 1, timeout=0.2)
    assert record.failure == "timeout"


def test_a_server_that_is_not_there_is_a_failure_to_connect():
    with scripted(WHOLE) as (_, target):
        pass
    assert [record.failure for record in put(target, 2)] == ["connect"] * 2


def test_an_open_loop_does_not_wait_for_answers_and_times_from_when_a_request_was_due():
    async def load(target: Target) -> list[Record]:
        client = Client(target, 10.0)
        sessions = Workload().sessions(8)
        times = [0.0, 0.0, 0.0, 0.0, 0.4, 0.4, 0.4, 0.4]
        try:
            return await open_loop(client, zip(times, sessions, strict=True), 4.0, lambda record: None)
        finally:
            client.close()

    with scripted(WHOLE, pause=0.8) as (server, target):
        records = uvloop.run(load(target))
    assert server.most_at_once == 8
    starts = [record.started - records[0].started for record in records]
    assert starts == pytest.approx([0.0] * 4 + [0.1] * 4)
    # The server's clock may be a little behind when it begins to wait.
    assert all(record.ended - record.started >= 0.7 and record.sent >= record.started for record in records)


def test_what_follows_a_failed_turn_is_not_sent():
    async def load(target: Target) -> list[Record]:
        sessions = Workload("multi-turn", turns=3, input_len=2).sessions(3)
        return await closed_loop(Client(target, 10.0), sessions, 1, lambda record: None)

    with scripted(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", WHOLE) as (server, target):
        records = asyncio.run(load(target))
    assert [record.failure for record in records] == ["http_500", "not_sent", "not_sent"]
    assert server.requests == 1
