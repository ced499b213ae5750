"""A file of packed weights: a header that says whose they are and where each lies, then the weights.

The header is written when all else is on disk, so a file without a good one was never finished. What is
checked when: the header, its checksum and the file's length at every opening; the weights' own checksums
only on demand (`verify`), since reading gigabytes would undo what the file is for.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace import _native
from headrace.backends.cpu.packing import Memory, PackedMatrix, total_bytes
from headrace.errors import ModelFileError

_MAGIC = b"HEADRACE-PACKED\n"
_PAGE = 4096


class Header(msgspec.Struct, frozen=True):
    """What a file says of itself, as JSON."""

    layout: str
    weights: str
    """Digest of the model file's weights, from which these were packed."""
    matrices: list[PackedMatrix]
    checksums: list[int]
    """CRC-32 of each matrix's packed bytes."""

    @property
    def file_bytes(self) -> int:
        return file_bytes(self.matrices)


def header_bytes(matrices: Sequence[PackedMatrix]) -> int:
    """Room for the header, whole pages. It depends on the matrices alone."""
    longest = Header(_native.PACKED_LAYOUT, "f" * 64, list(matrices), [2**32 - 1] * len(matrices))
    return -(-len(_encode(longest)) // _PAGE) * _PAGE


def file_bytes(matrices: Sequence[PackedMatrix]) -> int:
    return header_bytes(matrices) + total_bytes(matrices)


def write_header(file: int, weights: str, matrices: Sequence[PackedMatrix], memory: Memory) -> None:
    """Declares the file complete: `memory`, its packed weights, is on disk before it says so."""
    checksums = _checksums(matrices, memory)
    os.fsync(file)
    data = _encode(Header(_native.PACKED_LAYOUT, weights, list(matrices), checksums))
    os.pwrite(file, data, 0)
    os.fsync(file)


def read_header(file: int) -> Header:
    """Raises ModelFileError for a file that was not finished, is damaged in its header, or was cut."""
    start = os.pread(file, len(_MAGIC) + 8, 0)
    length = int.from_bytes(start[len(_MAGIC) : len(_MAGIC) + 4], "little")
    checksum = int.from_bytes(start[len(_MAGIC) + 4 :], "little")
    size = os.fstat(file).st_size
    data = os.pread(file, min(length, size), len(start))
    if not start.startswith(_MAGIC) or len(data) != length or zlib.crc32(data) != checksum:
        raise ModelFileError("the header is damaged")
    try:
        header = msgspec.json.decode(data, type=Header)
    except msgspec.DecodeError:
        raise ModelFileError("the header is of another version") from None
    if size != header.file_bytes:
        raise ModelFileError("the file is truncated")
    return header


def check(path: Path) -> Header:
    """Reads the header only. Raises ModelFileError where it is damaged, OSError where it cannot be read."""
    with path.open("rb") as file:
        return read_header(file.fileno())


def verify(path: Path) -> None:
    """Reads all of the file. Raises ModelFileError where it is damaged, OSError where it cannot be read."""
    header = check(path)
    memory = np.memmap(path, np.uint8, "r", offset=header_bytes(header.matrices))
    for matrix, expected, found in zip(
        header.matrices, header.checksums, _checksums(header.matrices, memory), strict=True
    ):
        if found != expected:
            raise ModelFileError(f"{matrix.name} is damaged")


def _encode(header: Header) -> bytes:
    data = msgspec.json.encode(header)
    return _MAGIC + len(data).to_bytes(4, "little") + zlib.crc32(data).to_bytes(4, "little") + data


def _checksums(matrices: Sequence[PackedMatrix], memory: Memory) -> list[int]:
    return [zlib.crc32(memory[matrix.offset : matrix.end].data) for matrix in matrices]
