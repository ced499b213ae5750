"""Element formats of GGUF tensors: how a block of each lies in memory, and its values as float32.

The formats are those of ggml (ggml-common.h, `block_q4_0` and so on). A row is a whole number of blocks. The
arithmetic is that of the official `gguf` package, rounding included, so results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.models.weights import Tensor, TensorType

Blocks = NDArray[np.void]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_BLOCKS_AT_ONCE = 1 << 14
"""Blocks unpacked in one go: temporaries stay in the cache, and small beside the result."""

_SCALE = ("d", "<f2")
_MINIMUM = ("m", "<f2")
_SCALES = ("scales", "u1", 12)  # see _scales_and_minimums

_LAYOUTS: dict[TensorType, tuple[int, np.dtype[np.void]]] = {
    TensorType.F32: (1, np.dtype([("x", "<f4")])),
    TensorType.F16: (1, np.dtype([("x", "<f2")])),
    TensorType.BF16: (1, np.dtype([("x", "<u2")])),
    TensorType.Q4_0: (32, np.dtype([_SCALE, ("q", "u1", 16)])),
    TensorType.Q4_1: (32, np.dtype([_SCALE, _MINIMUM, ("q", "u1", 16)])),
    TensorType.Q5_0: (32, np.dtype([_SCALE, ("high", "u1", 4), ("q", "u1", 16)])),
    TensorType.Q5_1: (32, np.dtype([_SCALE, _MINIMUM, ("high", "u1", 4), ("q", "u1", 16)])),
    TensorType.Q8_0: (32, np.dtype([_SCALE, ("q", "i1", 32)])),
    TensorType.Q4_K: (256, np.dtype([_SCALE, _MINIMUM, _SCALES, ("q", "u1", 128)])),
    TensorType.Q5_K: (256, np.dtype([_SCALE, _MINIMUM, _SCALES, ("high", "u1", 32), ("q", "u1", 128)])),
    TensorType.Q6_K: (256, np.dtype([("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _SCALE])),
}
"""For each format, the values of a block and how it lies in memory."""


def block_values(tensor_type: TensorType) -> int:
    """How many values a block of this format holds; 1 for the plain floats."""
    return _LAYOUTS[tensor_type][0]


def block_bytes(tensor_type: TensorType) -> int:
    """How many bytes a block of this format takes."""
    return _LAYOUTS[tensor_type][1].itemsize


def dequantize(tensor: Tensor) -> Floats:
    """The whole tensor as float32, in its own shape."""
    blocks = tensor.data.view(_LAYOUTS[tensor.type][1])
    return _unpack(tensor.type, blocks).reshape(tensor.shape)


def dequantize_rows(tensor: Tensor, rows: Sequence[int] | NDArray[np.integer]) -> Floats:
    """Some rows of a matrix as float32 [len(rows), columns]; IndexError where there is no such row."""
    layout = _LAYOUTS[tensor.type][1]
    columns = tensor.shape[-1]
    blocks = tensor.data.view(layout).reshape(-1, columns // block_values(tensor.type))
    picked = blocks[np.asarray(rows, dtype=np.intp)]
    return _unpack(tensor.type, picked.reshape(-1)).reshape(-1, columns)


def _unpack(tensor_type: TensorType, blocks: Blocks) -> Floats:
    """The values of flat blocks, flat."""
    out = np.empty((blocks.size, block_values(tensor_type)), np.float32)
    unpack = _UNPACK[tensor_type]
    for start in range(0, blocks.size, _BLOCKS_AT_ONCE):
        part = slice(start, start + _BLOCKS_AT_ONCE)
        out[part] = unpack(blocks[part])
    return out.reshape(-1)


def _column(x: NDArray[np.generic]) -> Floats:
    return x.astype(np.float32)[:, None]


def _nibbles(q: Bytes, run: int) -> Bytes:
    """Each `run` bytes hold 2·run values: first all the low nibbles, then all the high ones."""
    runs = q.reshape(len(q), -1, run)
    halves: Bytes = np.stack([runs & 15, runs >> 4], axis=2)
    return halves.reshape(len(q), -1)


def _bits(high: Bytes) -> Bytes:
    return np.unpackbits(high, axis=1, bitorder="little")


def _scales_and_minimums(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight minimums of 6 bits each, [n, 8], from 12 bytes.

    Bytes 0-3 and 4-7 hold the first four of either; bytes 8-11 the low halves of the last four, whose upper
    two bits fill what is free above the first four.
    """
    scales, minimums, low = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    return (
        np.concatenate([scales & 63, (low & 15) | (scales >> 6 << 4)], axis=1).astype(np.float32),
        np.concatenate([minimums & 63, (low >> 4) | (minimums >> 6 << 4)], axis=1).astype(np.float32),
    )


def _float(blocks: Blocks) -> Floats:
    return _column(blocks["x"])


def _bf16(blocks: Blocks) -> Floats:
    bits: NDArray[np.uint32] = blocks["x"].astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)[:, None]


def _q4_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * (_nibbles(blocks["q"], 16).astype(np.float32) - 8)


def _q4_1(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _nibbles(blocks["q"], 16) + _column(blocks["m"])


def _q5(blocks: Blocks) -> Bytes:
    q: Bytes = _nibbles(blocks["q"], 16) | _bits(blocks["high"]) << np.uint8(4)
    return q


def _q5_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * (_q5(blocks).astype(np.float32) - 16)


def _q5_1(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _q5(blocks) + _column(blocks["m"])


def _q8_0(blocks: Blocks) -> Floats:
    values: Floats = _column(blocks["d"]) * blocks["q"]
    return values


def _scaled_groups(blocks: Blocks, q: Bytes) -> Floats:
    """d·scale·q - dmin·minimum, over eight groups of 32."""
    scales, minimums = _scales_and_minimums(blocks["scales"])
    scales *= _column(blocks["d"])
    minimums *= _column(blocks["m"])
    return (scales[:, :, None] * q.reshape(-1, 8, 32) - minimums[:, :, None]).reshape(-1, 256)


def _q4_k(blocks: Blocks) -> Floats:
    return _scaled_groups(blocks, _nibbles(blocks["q"], 32))


def _q5_k(blocks: Blocks) -> Floats:
    # Bit i of byte j belongs to value j of group i.
    high = _bits(blocks["high"]).reshape(-1, 32, 8).swapaxes(1, 2).reshape(-1, 256)
    return _scaled_groups(blocks, _nibbles(blocks["q"], 32) | high << np.uint8(4))


def _q6_k(blocks: Blocks) -> Floats:
    # Either half of the block has 32 bytes of high bits: two bits each for its four runs of 32 values.
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks["high"].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 256)
    q = (_nibbles(blocks["q"], 64) | high << 4).astype(np.float32) - 32
    scales: Floats = _column(blocks["d"]) * blocks["scales"]
    return (scales[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


_UNPACK: dict[TensorType, Callable[[Blocks], Floats]] = {
    TensorType.F32: _float,
    TensorType.F16: _float,
    TensorType.BF16: _bf16,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
}
