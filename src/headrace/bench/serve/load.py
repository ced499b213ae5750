"""Puts the load on: a closed loop of clients that wait for their answers, or an open loop that does not.

In a closed loop a slow server is asked less often. An open loop goes on asking, as independent users do, so
queues build up and show; its requests are timed from when they were due, whatever delayed their sending, for
else the waits that an overload causes would be left out of the figures ("coordinated omission").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from headrace.bench.serve.client import Client, now
from headrace.bench.serve.record import Record
from headrace.bench.serve.workloads import Ask, Session

Note = Callable[[Record], None]
"""Told of each request that has ended."""


async def closed_loop(
    client: Client, sessions: Iterator[Session], concurrency: int, note: Note
) -> list[Record]:
    """`concurrency` clients, each of which begins a session when it has ended another."""
    records: list[Record] = []

    async def one() -> None:
        for session in sessions:
            ask = next(session.asks)
            records.extend(await _play(client, session, ask, client.target.request(ask), None, note))

    await asyncio.gather(*(one() for _ in range(concurrency)))
    return records


async def open_loop(
    client: Client, arrivals: Iterator[tuple[float, Session]], speed: float, note: Note
) -> list[Record]:
    """Each session begins at its time of arrival, in seconds, divided by `speed`."""
    playing: list[asyncio.Task[list[Record]]] = []
    began = now()
    for arrival, session in arrivals:
        ask = next(session.asks)
        request = client.target.request(ask)  # before it is due: making a long prompt takes a while
        due = began + arrival / speed
        await asyncio.sleep(due - now())
        while now() < due:  # uvloop's timers may be a millisecond early
            await asyncio.sleep(0)
        playing.append(asyncio.create_task(_play(client, session, ask, request, due, note)))
    return [record for played in playing for record in await played]


async def _play(
    client: Client, session: Session, ask: Ask, request: bytes, due: float | None, note: Note
) -> list[Record]:
    """Sends a session's requests one after another, until the last has ended or one has failed."""
    records: list[Record] = []
    while True:
        record = Record(ask.max_tokens, started=now() if due is None else due)
        records.append(record)
        answer = await client.send(request, record)
        note(record)
        if record.failure is not None:
            break
        try:
            ask = session.asks.send(answer)
        except StopIteration:
            break
        due, request = None, client.target.request(ask)
    for _ in range(session.turns - len(records)):
        records.append(Record(ask.max_tokens))
        records[-1].fail("not_sent", "an earlier turn failed", now())
        note(records[-1])
    return records
