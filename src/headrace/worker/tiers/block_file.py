"""A cache block as a file: its bytes behind a header that tells whether they are whole and which they are."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

import xxhash

from headrace.errors import HeadraceError

_HEADER = struct.Struct("<8sQ16s")
_MAGIC = b"hrblock1"

HEADER_BYTES = _HEADER.size


class BrokenBlockError(HeadraceError):
    """A block's file is not what was written."""


def write(file: int, name: bytes, parts: Sequence[memoryview]) -> None:
    """Write a block's file; `parts` are its bytes in each cache group, `name` goes into the checksum."""
    header = _HEADER.pack(_MAGIC, sum(map(len, parts)), _checksum(name, parts))
    buffers = [memoryview(header), *parts]
    while buffers:
        written = os.writev(file, buffers)
        while buffers and written >= len(buffers[0]):
            written -= len(buffers.pop(0))
        if written:
            buffers[0] = buffers[0][written:]


def read(file: int, name: bytes, parts: Sequence[memoryview]) -> None:
    """Read a block's file straight into `parts`.

    Raises BrokenBlockError where it is not whole, not the block of that name, or of another size: then the
    parts hold anything.
    """
    header = bytearray(HEADER_BYTES)
    size = sum(map(len, parts))
    if os.fstat(file).st_size != HEADER_BYTES + size:
        raise BrokenBlockError("its size is wrong")
    if os.preadv(file, [header, *parts], 0) != HEADER_BYTES + size:
        raise BrokenBlockError("it ends early")
    magic, length, checksum = _HEADER.unpack(header)
    if magic != _MAGIC or length != size or checksum != _checksum(name, parts):
        raise BrokenBlockError("its checksum is wrong")


def _checksum(name: bytes, parts: Sequence[memoryview]) -> bytes:
    checksum = xxhash.xxh3_128(name)
    for part in parts:
        checksum.update(part)
    return checksum.digest()
