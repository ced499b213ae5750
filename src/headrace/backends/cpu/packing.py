"""Weights as the kernels want them: where each matrix lies in memory, and how it comes there."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.backends.cpu import huge_pages
from headrace.models.weights import TensorType, Weights

Memory = NDArray[np.uint8]

_ROWS_AT_A_TIME = 32 * _native.TILE_ROWS


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix's place in packed memory."""

    name: str
    type: TensorType
    rows: int
    columns: int
    offset: int
    bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.bytes


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Packed matrices in memory that whoever computes with them keeps alive."""

    memory: Memory
    offsets: dict[str, int]
    shared: bool
    """Whether the memory is pages of a file, which other processes may map too."""


def lay_out(weights: Weights, names: Iterable[str]) -> list[PackedMatrix]:
    """The matrices of these names one behind the other, each once, in the order of the names."""
    matrices: list[PackedMatrix] = []
    offset = 0
    for name in dict.fromkeys(names):
        tensor = weights.tensor(name)
        rows, columns = tensor.shape
        size = _native.packed_bytes(tensor.type, rows, columns)
        matrices.append(PackedMatrix(name, tensor.type, rows, columns, offset, size))
        offset += size
    return matrices


def total_bytes(matrices: Sequence[PackedMatrix]) -> int:
    return matrices[-1].end if matrices else 0


def pack(matrices: Sequence[PackedMatrix], weights: Weights, memory: Memory, threads: int) -> None:
    """Writes every matrix to its place in `memory`."""

    def pack_piece(piece: tuple[PackedMatrix, int]) -> None:
        matrix, first = piece
        _native.pack_rows(
            matrix.type,
            matrix.rows,
            matrix.columns,
            weights.tensor(matrix.name).data,
            first,
            min(first + _ROWS_AT_A_TIME, matrix.rows),
            memory[matrix.offset : matrix.end],
        )

    with ThreadPoolExecutor(threads, thread_name_prefix="pack") as pool:
        for _ in pool.map(pack_piece, _pieces(matrices)):
            pass


def pack_privately(matrices: Sequence[PackedMatrix], weights: Weights, threads: int) -> PackedWeights:
    """Packs into memory of this process alone."""
    memory = private_memory(total_bytes(matrices))
    pack(matrices, weights, memory, threads)
    return PackedWeights(memory, offsets(matrices), shared=False)


def private_memory(size: int) -> Memory:
    """Zeroed memory, on huge pages where the system gives them; they save address look-ups."""
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    huge_pages.advise(pages)
    return np.frombuffer(pages, np.uint8)


def offsets(matrices: Iterable[PackedMatrix]) -> dict[str, int]:
    return {matrix.name: matrix.offset for matrix in matrices}


def _pieces(matrices: Iterable[PackedMatrix]) -> Iterator[tuple[PackedMatrix, int]]:
    for matrix in matrices:
        for first in range(0, matrix.rows, _ROWS_AT_A_TIME):
            yield matrix, first
