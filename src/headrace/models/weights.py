"""What the rest of the house sees of a model file: hyperparameters, tensors by name, the tokenizer's data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class TensorType(IntEnum):
    """Element formats, by their number in a GGUF file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as it lies in the file."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    """Row-major: [rows, columns] for a matrix, columns contiguous (a file lists them in reverse)."""
    data: NDArray[np.uint8]
    """The raw bytes, flat, a read-only view of the mapped file."""


class Weights(Protocol):
    """An open model file."""

    @property
    def metadata(self) -> Mapping[str, object]:
        """Keys and values of the file; arrays as lists or NumPy arrays."""
        ...

    def __contains__(self, name: str) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def tensor(self, name: str) -> Tensor:
        """Raises ModelFileError, naming the tensor, where the file has none of that name."""
        ...

    def digest(self) -> str:
        """SHA-256 of everything that numerics depend on, hexadecimal, for the fingerprint."""
        ...
