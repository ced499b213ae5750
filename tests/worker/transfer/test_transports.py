"""Every transport moves frames whole, refuses what is broken, and holds a fast sender back."""

from __future__ import annotations

import importlib.util
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Event, Thread

import numpy as np
import pytest

from headrace.worker.transfer.connection import Connection
from headrace.worker.transfer.errors import (
    ChecksumError,
    PeerGoneError,
    ProtocolError,
    TransferError,
    TransferTimeoutError,
)
from headrace.worker.transfer.listener import Listener, connect
from headrace.worker.transfer.ring import RING_BYTES

SECRET = b"of both ends"
SIZES = (1, 63, 4096, 255 << 10, 256 << 10, (256 << 10) + 1, RING_BYTES, 2 * RING_BYTES + 5)
HAS_NIXL = importlib.util.find_spec("nixl_cu12") is not None


@pytest.fixture(
    params=[
        "unix:",
        "unix: without shared memory",
        "tcp:127.0.0.1:0",
        pytest.param(
            "nixl:127.0.0.1:0", marks=pytest.mark.skipif(not HAS_NIXL, reason="needs headrace[nixl]")
        ),
    ]
)
def address(request, monkeypatch) -> str:
    if "without" in request.param:
        monkeypatch.delattr(os, "memfd_create")
    return request.param.partition(" ")[0]


@contextmanager
def two_ends(address: str, stall: float = 5.0) -> Iterator[tuple[Connection, Connection]]:
    """(the accepting end, the connecting end)"""
    accepted: Queue[Connection] = Queue()
    done = Event()

    def hand_out(connection: Connection) -> None:
        accepted.put(connection)
        done.wait()

    listener = Listener(address, hand_out, secret=SECRET, stall=stall)
    try:
        with connect(listener.address, secret=SECRET, stall=stall) as connection:
            yield accepted.get(timeout=10), connection
    finally:
        listener.close()
        done.set()


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[Queue[Exception | None]]:
    """Runs `work` in a thread; the queue then has what it raised."""
    ended: Queue[Exception | None] = Queue()

    def run() -> None:
        try:
            work()
        except TransferError as error:
            ended.put(error)
        else:
            ended.put(None)

    thread = Thread(target=run)
    thread.start()
    yield ended
    thread.join(20)
    assert not thread.is_alive()


def blocks_of(*sizes: int) -> list[memoryview]:
    noise = np.random.default_rng(sum(sizes)).integers(0, 256, 1_000_003, np.uint8)
    return [memoryview(np.resize(noise, size)) for size in sizes]


def empty(sizes: Sequence[int]) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


def test_frames_of_every_size_arrive_as_sent(address):
    batches = [[], *([size] for size in SIZES), SIZES, [4096] * 500]
    with two_ends(address) as (here, there):
        for number, sizes in enumerate(batches):
            sent = blocks_of(*sizes)
            with beside(lambda sent=sent, number=number: there.send(b"x" * number * 1000, sent)) as ended:
                frame = here.receive(timeout=10)
                assert frame.header == b"x" * number * 1000 and list(frame.sizes) == list(sizes)
                received = empty(frame.sizes)
                here.receive_blocks(received)
            assert ended.get() is None
            assert received == sent


def test_both_ends_send_at_once(address):
    sent = blocks_of(3 << 20, 3 << 20)
    with two_ends(address) as (here, there):

        def both(mine: Connection) -> None:
            with beside(lambda: mine.send(b"to the other", sent)) as ended:
                received = empty(mine.receive(timeout=10).sizes)
                mine.receive_blocks(received)
                assert received == sent
            assert ended.get() is None

        with beside(lambda: both(here)) as ended:
            both(there)
        assert ended.get() is None


def test_a_block_received_is_sent_on(address):
    sent, mine, back = blocks_of(100_000), empty([100_000]), empty([100_000])
    with two_ends(address) as (here, there):
        for sender, receiver, source, target in ((there, here, sent, mine), (here, there, mine, back)):
            with beside(lambda sender=sender, source=source: sender.send(b"", source)) as ended:
                receiver.receive(timeout=10)
                receiver.receive_blocks(target)
            assert ended.get() is None
    assert back == sent


def test_the_wait_for_a_frame_may_end_and_begin_again(address):
    with two_ends(address) as (here, there):
        with pytest.raises(TransferTimeoutError):
            here.receive(timeout=0.05)
        there.send(b"late")
        assert here.receive(timeout=5).header == b"late"


def test_a_sender_that_goes_in_the_middle_of_a_frame(address):
    with two_ends(address) as (here, there), beside(lambda: there.send(b"", blocks_of(64 << 20))) as ended:
        frame = here.receive(timeout=10)
        there.abort()
        with pytest.raises(PeerGoneError):
            here.receive_blocks(empty(frame.sizes))
        assert isinstance(ended.get(), PeerGoneError)


def test_a_receiver_that_goes_in_the_middle_of_a_frame(address):
    with two_ends(address) as (here, there), beside(lambda: there.send(b"", blocks_of(64 << 20))) as ended:
        here.receive(timeout=10)
        here.close()
        assert isinstance(ended.get(timeout=5), PeerGoneError)


def test_abort_wakes_who_waits_for_a_frame(address):
    with two_ends(address) as (here, _), beside(here.receive) as ended:
        time.sleep(0.1)
        here.abort()
        assert isinstance(ended.get(timeout=5), PeerGoneError)


def test_closing_the_listener_ends_its_connections(address):
    began, ended = Event(), Event()

    def wait(connection: Connection) -> None:
        began.set()
        try:
            connection.receive()
        finally:
            ended.set()

    listener = Listener(address, wait, secret=SECRET)
    with connect(listener.address, secret=SECRET) as connection:
        assert began.wait(5)
        listener.close()
        with pytest.raises(PeerGoneError):
            connection.receive(timeout=5)
    assert ended.wait(5)
    with pytest.raises(PeerGoneError):
        connect(listener.address, secret=SECRET)


def test_a_corrupted_block_is_refused(address):
    sent = blocks_of(4096, 64 << 20)
    with two_ends(address) as (here, there), beside(lambda: there.send(b"", sent)):
        frame = here.receive(timeout=10)
        time.sleep(0.3)  # now the checksums are made, and the sender waits
        tamper_with_rings() if is_ring(here) else flip(sent[1], -1)
        with pytest.raises(ChecksumError, match=r"block [01] of 2"):
            here.receive_blocks(empty(frame.sizes))
        here.abort()


def is_ring(connection: Connection) -> bool:
    return type(connection).__name__ == "RingConnection"


def flip(view: memoryview, at: int) -> None:
    view[at] ^= 1


def tamper_with_rings() -> None:
    """Flips a bit in every ring that this process has open."""
    found = Path("/proc/self/fd").iterdir()
    rings = {file.stat().st_ino: file for file in found if "headrace-ring" in os.path.realpath(file)}
    for path in rings.values():
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as ring:
            ring[RING_BYTES // 2] ^= 1


def test_a_slow_reader_holds_the_sender_back(address):
    """A sender's bytes wait in its own blocks, not in memory that grows."""
    block = blocks_of(1 << 20)[0]
    with two_ends(address) as (here, there):
        before = resident_bytes()
        with beside(lambda: there.send(b"", [block] * 200)) as ended:
            frame = here.receive(timeout=10)
            time.sleep(0.3)
            assert ended.empty()
            assert resident_bytes() - before < 40 << 20
            target = empty([1 << 20])[0]
            here.receive_blocks([target] * len(frame.sizes))
        assert ended.get() is None and target == block


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_reader_that_stops_is_given_up(address):
    with (
        two_ends(address, stall=0.3) as (_, there),
        beside(lambda: there.send(b"", blocks_of(64 << 20))) as ended,
    ):
        assert isinstance(ended.get(timeout=5), TransferTimeoutError)


@pytest.mark.parametrize(
    "wrong", ["nonsense", "unix:/tmp/x", "tcp:host", "tcp:host:99999", "udp:host:1", "tcp:localhost:1"]
)
def test_an_address_that_is_none_is_named(wrong):
    with pytest.raises(ProtocolError, match=f"{wrong}"):
        connect(wrong)
