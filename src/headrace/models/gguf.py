"""GGUF model files, versions 2 and 3, little-endian, read through a memory map.

The header is read and checked in full when a file is opened (`gguf_header`); tensors are views of the map.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ModelFileError
from headrace.models.gguf_header import HeaderReader
from headrace.models.weights import Tensor

_SAMPLES = 8
_SAMPLE_BYTES = 4096


class GgufFile:
    """An open GGUF file; implements `Weights`.

    Raises ModelFileError where the file cannot be read, is truncated, contradicts itself, or holds a type
    that is not supported. After `close` no more tensors can be had; those handed out stay valid.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._map: mmap.mmap | None = _map(self.path)
        reader = HeaderReader(self.path, self._map)
        tensor_count, key_count = reader.counts()
        self._metadata = reader.metadata(key_count)
        self._places = reader.tensors(tensor_count, self._metadata)
        self._header_bytes = reader.at
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(self._map, np.uint8)
        self._digest: str | None = None

    @property
    def metadata(self) -> Mapping[str, object]:
        """Keys and values: int, float, bool, str; arrays of str as lists, of numbers as NumPy arrays."""
        return MappingProxyType(self._metadata)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        """Names of the tensors, in the order of the file."""
        return iter(self._places)

    def tensor(self, name: str) -> Tensor:
        """Raises ModelFileError, naming the tensor, where the file has none of that name."""
        place = self._places.get(name)
        if place is None:
            raise ModelFileError(f"{self.path}: tensor {name!r} is missing")
        return Tensor(name, place.type, place.shape, self._open_bytes()[place.start : place.end])

    def digest(self) -> str:
        """SHA-256 over the header (metadata, table of tensors), the file's size, and a sample of each tensor.

        The sample is eight evenly spaced runs of 4 KiB, all of a tensor of up to 32 KiB: to read every byte
        of a large model would cost seconds at each start. Files that differ in training, quantisation or
        shape differ here; one made by altering a few bytes of another may not, and no file comes about that
        way unless someone means it.
        """
        if self._digest is None:
            data = self._open_bytes()
            sha = hashlib.sha256(data[: self._header_bytes].data)
            sha.update(data.size.to_bytes(8, "little"))
            for place in self._places.values():
                last = max(place.end - _SAMPLE_BYTES, place.start)
                starts = {place.start + (last - place.start) * i // (_SAMPLES - 1) for i in range(_SAMPLES)}
                for start in sorted(starts):
                    sha.update(data[start : min(start + _SAMPLE_BYTES, place.end)].data)
            self._digest = sha.hexdigest()
        return self._digest

    def _open_bytes(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            raise ValueError(f"{self.path} is closed")
        return self._bytes

    def close(self) -> None:
        """Gives up the map; the last tensor that views it unmaps it."""
        self._bytes = self._map = None

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelFileError(f"{path}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
