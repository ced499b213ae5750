"""Dequantisation equals the official gguf package bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from headrace.models.gguf import GgufFile
from headrace.models.quants import block_bytes, block_values, dequantize, dequantize_rows
from headrace.models.weights import Tensor, TensorType

HALVES = {  # where a block keeps its 16-bit floats
    TensorType.Q4_0: (0,),
    TensorType.Q4_1: (0, 2),
    TensorType.Q5_0: (0,),
    TensorType.Q5_1: (0, 2),
    TensorType.Q8_0: (0,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208,),
}


def random_tensor(kind: TensorType, shape: tuple[int, ...], seed: int) -> Tensor:
    """Blocks of random bytes, any 16-bit scale but the infinite and NaN ones."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape)) // block_values(kind)
    blocks = rng.integers(0, 256, (count, block_bytes(kind)), dtype=np.uint8)
    if kind in (TensorType.F32, TensorType.F16, TensorType.BF16):
        exponent = {TensorType.F32: 0x7F800000, TensorType.F16: 0x7C00, TensorType.BF16: 0x7F80}[kind]
        bits = blocks.view(np.uint32 if kind == TensorType.F32 else np.uint16)
        bits[bits & exponent == exponent] = 0
    for offset in HALVES.get(kind, ()):
        blocks[:, offset + 1][blocks[:, offset + 1] & 0x7C == 0x7C] = 0
    return Tensor("random", kind, shape, blocks.reshape(-1))


def official(tensor: Tensor) -> np.ndarray:
    rows = tensor.data.reshape(*tensor.shape[:-1], -1)
    return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(tensor.type)).reshape(tensor.shape)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype == np.float32 and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("kind", TensorType, ids=lambda t: t.name)
def test_block_sizes_are_those_of_ggml(kind: TensorType) -> None:
    assert (block_values(kind), block_bytes(kind)) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]


@pytest.mark.parametrize("shape", [(256,), (3, 512), (2, 5, 256), (1, 32768 * 17)], ids=str)
@pytest.mark.parametrize("kind", TensorType, ids=lambda t: t.name)
def test_random_blocks_dequantize_as_officially(kind: TensorType, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(kind, shape, seed=int(kind) * 10 + len(shape))
    assert same_bits(dequantize(tensor), official(tensor))


@pytest.mark.parametrize("kind", TensorType, ids=lambda t: t.name)
def test_rows_equal_those_of_the_whole(kind: TensorType) -> None:
    tensor = random_tensor(kind, (40, 512), seed=int(kind))
    rows = np.array([39, 0, 7, 7, 12])
    assert same_bits(dequantize_rows(tensor, rows), dequantize(tensor)[rows])
    assert dequantize_rows(tensor, []).shape == (0, 512)


def test_a_row_that_is_not_there_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        dequantize_rows(random_tensor(TensorType.Q8_0, (4, 64), seed=1), [4])


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b"])
def test_one_real_tensor_of_each_type_dequantizes_as_officially(name: str, model_path) -> None:
    with GgufFile(model_path(name)) as file:
        smallest: dict[TensorType, Tensor] = {}
        for tensor in map(file.tensor, file):
            if tensor.type not in smallest or tensor.data.size < smallest[tensor.type].data.size:
                smallest[tensor.type] = tensor
        assert TensorType.F32 in smallest and len(smallest) >= 3
        for tensor in smallest.values():
            assert same_bits(dequantize(tensor), official(tensor))
