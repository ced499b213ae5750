"""The header of a GGUF file: its metadata, and where each tensor lies.

Format: docs/gguf.md of the ggml project. A file may come from anywhere, so every length, count and offset is
checked against what remains of the file before it is used; what is wrong is named by its key or tensor.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ModelFileError
from headrace.models.quants import block_bytes, block_values
from headrace.models.weights import TensorType

_MAGIC = b"GGUF"
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_SCALARS = dict(enumerate(["<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"])) | {
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""Metadata value types by number; strings and arrays apart."""
_BOOL, _STRING, _ARRAY = 7, 8, 9

_MAX_ITEMS = 1 << 24
"""Items of a metadata array, or bytes of a string: beyond any tokenizer, and within any machine's memory."""
_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: its bytes are [start, end) of the file."""

    type: TensorType
    shape: tuple[int, ...]
    start: int
    end: int


class HeaderReader:
    """Walks the header front to back; `what` says what is being read, for the errors."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size = path, data, len(data)
        self.at = 0
        self.what = "header"

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {self.what}: {problem}")

    def need(self, count: int) -> None:
        if count > self.size - self.at:
            raise self.error(
                f"needs {count} bytes at byte {self.at}, but the file ends at byte {self.size}; "
                "it is truncated or corrupt, fetch it again"
            )

    def integer(self, form: struct.Struct) -> int:
        self.need(form.size)
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return int(value)

    def string(self) -> str:
        length = self.integer(_U64)
        self.need(length)
        if length > _MAX_ITEMS:
            raise self.error(f"a string of {length} bytes")
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"a string is not valid UTF-8 ({error.reason})") from error

    def counts(self) -> tuple[int, int]:
        """How many tensors and how many keys follow."""
        self.need(len(_MAGIC))
        if self.data[: len(_MAGIC)] != _MAGIC:
            raise self.error("this is not a GGUF file")
        self.at = len(_MAGIC)
        version = self.integer(_U32)
        if version & 0xFFFF == 0:
            raise self.error("a big-endian file; convert it to little-endian")
        if version not in (2, 3):
            raise self.error(f"GGUF version {version}; versions 2 and 3 can be read")
        tensor_count, key_count = self.integer(_U64), self.integer(_U64)
        if tensor_count * _MIN_TENSOR_BYTES + key_count * _MIN_KEY_BYTES > self.size - self.at:
            raise self.error(f"{tensor_count} tensors and {key_count} keys do not fit in {self.size} bytes")
        return tensor_count, key_count

    def metadata(self, count: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for number in range(count):
            self.what = f"metadata key number {number}"
            key = self.string()
            if not key or key in found:
                raise self.error(f"key {key!r} occurs twice" if key else "the key is empty")
            self.what = f"metadata key {key!r}"
            found[key] = self.value(self.integer(_U32))
        return found

    def value(self, value_type: int) -> object:
        if value_type == _STRING:
            return self.string()
        if value_type != _ARRAY:
            return self.numbers(value_type, 1)[0].item()
        item_type, count = self.integer(_U32), self.integer(_U64)
        if item_type == _ARRAY:
            raise self.error("an array of arrays is not supported")
        if count > _MAX_ITEMS:
            raise self.error(f"an array of {count} items")
        return self.strings(count) if item_type == _STRING else self.numbers(item_type, count)

    def numbers(self, value_type: int, count: int) -> NDArray[np.generic]:
        if value_type not in _SCALARS:
            raise self.error(f"unknown value type {value_type}")
        dtype = np.dtype(_SCALARS[value_type])
        self.need(count * dtype.itemsize)
        # A copy, so that metadata is aligned and outlives the map.
        numbers = np.frombuffer(self.data[self.at : self.at + count * dtype.itemsize], dtype)
        self.at += count * dtype.itemsize
        if value_type == _BOOL and bool((numbers.view(np.uint8) > 1).any()):
            raise self.error("a boolean is neither 0 nor 1")
        return numbers

    def strings(self, count: int) -> list[str]:
        """As `string`, `count` times: one tight loop, for a vocabulary and its merges are 300,000 of them."""
        self.need(count * _U64.size)
        data, at, size = self.data, self.at, self.size
        length_at = _U64.unpack_from
        texts: list[str] = []
        try:
            for _ in range(count):
                start = at + _U64.size
                if start <= size:
                    at = start + length_at(data, at)[0]
                if start > size or at > size:
                    raise self.error(f"item {len(texts)} ends past the end of the file; fetch it again")
                texts.append(data[start:at].decode())
        except UnicodeDecodeError as error:
            raise self.error(f"item {len(texts)} is not valid UTF-8 ({error.reason})") from error
        self.at = at
        return texts

    def tensors(self, count: int, metadata: Mapping[str, object]) -> dict[str, Place]:
        """The table of tensors; leaves `at` where their data begins."""
        self.what = "metadata key 'general.alignment'"
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise self.error(f"{alignment!r} is not a power of two of at least 8")
        found: dict[str, Place] = {}
        for number in range(count):
            self.what = f"tensor number {number}"
            name = self.string()
            if not name or name in found:
                raise self.error(f"name {name!r} occurs twice" if name else "the name is empty")
            self.what = f"tensor {name!r}"
            found[name] = self.place(alignment)
        self.what = "header"
        self.at += -self.at % alignment
        self.need(0)
        return self.located(found)

    def place(self, alignment: int) -> Place:
        """One entry of the table; start and end still count from where the data begins."""
        dimensions = self.integer(_U32)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self.error(f"{dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
        shape = tuple(self.integer(_U64) for _ in range(dimensions))[::-1]
        number, start = self.integer(_U32), self.integer(_U64)
        try:
            tensor_type = TensorType(number)
        except ValueError:
            known = ", ".join(t.name for t in TensorType)
            raise self.error(f"element type number {number} is not supported; {known} are") from None
        if 0 in shape:
            raise self.error(f"shape {list(shape)} has a zero")
        values, size = block_values(tensor_type), block_bytes(tensor_type)
        if shape[-1] % values:
            raise self.error(f"rows of {shape[-1]} values are no whole number of {tensor_type.name} blocks")
        if start % alignment:
            raise self.error(f"its offset {start} is not a multiple of the alignment {alignment}")
        return Place(tensor_type, shape, start, start + prod(shape) // values * size)

    def located(self, table: Mapping[str, Place]) -> dict[str, Place]:
        """The table with positions counted from the start of the file; none past its end, no two overlap."""
        room = self.size - self.at
        end, before = 0, ""
        for name, place in sorted(table.items(), key=lambda item: item[1].start):
            self.what = f"tensor {name!r}"
            if place.end > room:
                raise self.error(
                    f"ends {place.end - room} bytes past the end of the file; "
                    "it is truncated or corrupt, fetch it again"
                )
            if place.start < end:
                raise self.error(f"overlaps tensor {before!r}")
            end, before = place.end, name
        return {n: Place(p.type, p.shape, self.at + p.start, self.at + p.end) for n, p in table.items()}
