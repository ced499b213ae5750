"""The compiled ring: instruction sets copy and sum alike, and no word of the other end leads out of it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace import _native

ISAS = [isa for isa, _ in _native.available_isas()]
RING_BYTES = 256 << 10
SIZES = (1, 63, 64, 65, 4096, 100_003)
FILLED, FREED = 0, 128
"""Where the counters are in the ring's first bytes."""


class Ends(NamedTuple):
    memory: NDArray[np.uint8]
    sender: _native.Ring
    receiver: _native.Ring


@pytest.fixture(params=[(a, b) for a in ISAS for b in ISAS], ids="-".join)
def ends(request) -> Iterator[Ends]:
    memory = np.zeros(_native.RING_CONTROL_BYTES + RING_BYTES, np.uint8)
    wake = [os.eventfd(0), os.eventfd(0)]
    a, b = request.param
    yield Ends(memory, _native.Ring(a, memory, wake[1]), _native.Ring(b, memory, wake[0]))
    for descriptor in wake:
        os.close(descriptor)


def noise(*sizes: int) -> list[memoryview]:
    random = np.random.default_rng(len(sizes))
    return [random.integers(0, 256, size, np.uint8).data for size in sizes]


def passed(ends: Ends, sent: list[memoryview]) -> tuple[list[memoryview], list[int], list[int]]:
    """(what arrived, the sender's checksums, the receiver's)"""
    received = [memoryview(mmap.mmap(-1, len(block))) for block in sent]  # aligned, as a cache's are
    ends.sender.send(sent)
    ends.receiver.receive(received)
    while not ends.receiver.advance():
        ends.sender.advance()
    assert ends.sender.advance()
    return received, ends.sender.checksums(), ends.receiver.checksums()


def test_blocks_arrive_with_equal_checksums_whatever_the_ends_compute_with(ends):
    for sent in (noise(*SIZES), noise(*SIZES[::-1] * 5), noise(3 * RING_BYTES + 7)):
        received, sums, found = passed(ends, sent)
        assert received == sent
        assert sums == found and len(set(sums)) == len(sent)


def test_checksums_tell_a_flipped_bit_swapped_stripes_and_zeros_at_the_end(ends):
    block = bytearray(noise(1024)[0])
    wrong = []
    for bit in range(0, 8 * len(block), 37):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        wrong.append(flipped)
    wrong.append(block[64:128] + block[:64] + block[128:])
    wrong.append(block[8:16] + block[:8] + block[16:])
    wrong.append(block + bytes(1))
    wrong += [bytearray(1024), bytearray(1025)]
    _, sums, _ = passed(ends, [memoryview(data) for data in (block, *wrong)])
    assert len(set(sums)) == 1 + len(wrong)


def test_counters_that_no_ring_can_have_are_refused(ends):
    count = ends.memory[:256].view(np.uint64)
    target = [memoryview(bytearray(1000))]
    for impossible in (RING_BYTES + 64, 32, 2**64 - 64):
        count[FILLED // 8] = impossible
        ends.receiver.receive(target)
        with pytest.raises(RuntimeError, match="the other end"):
            ends.receiver.advance()
    for impossible in (64, 2**64 - RING_BYTES - 64, 2**63):
        count[FREED // 8] = impossible
        ends.sender.send(target)
        with pytest.raises(RuntimeError, match="the other end"):
            ends.sender.advance()


def test_read_only_blocks_are_sent_and_never_received_into(ends):
    block = memoryview(bytes(100))
    ends.sender.send([block])
    assert ends.sender.advance()
    with pytest.raises(TypeError):
        ends.receiver.receive([block])
