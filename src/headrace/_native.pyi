"""Types of the compiled core; native/module.cpp is the source."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SAMPLING_RECORD_BYTES: int
PACKED_LAYOUT: str
TILE_ROWS: int
RING_CONTROL_BYTES: int
CUES: int

def available_isas() -> list[tuple[str, str]]: ...
def packed_bytes(type: int, outputs: int, inputs: int) -> int: ...
def dequantize_row(type: int, inputs: int, data: NDArray[np.uint8]) -> NDArray[np.float32]: ...
def pack_rows(
    type: int,
    outputs: int,
    inputs: int,
    data: NDArray[np.uint8],
    first: int,
    last: int,
    packed: NDArray[np.uint8],
) -> None: ...

class CoreLease:
    def __init__(self, file: str, cores: list[int], count: int) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...

class PromptEstimator:
    def __init__(
        self,
        centre: NDArray[np.float32],
        scale: NDArray[np.float32],
        support: NDArray[np.float32],
        duals: NDArray[np.float32],
        rarities: NDArray[np.float32],
        weights: NDArray[np.float32],
        means: NDArray[np.float32],
        links: NDArray[np.float32],
        anchors: NDArray[np.int32],
        inverse: NDArray[np.float32],
        prior: NDArray[np.float32],
        width: float,
        furthest: float,
    ) -> None: ...
    def estimate(self, text: bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...

class Ring:
    def __init__(self, isa: str, memory: NDArray[np.uint8], wake: int) -> None: ...
    def send(self, blocks: Sequence[memoryview]) -> None: ...
    def receive(self, blocks: Sequence[memoryview]) -> None:
        """Of both: the blocks must live until `advance` returns True, or is not called again."""

    def advance(self) -> bool: ...
    def checksums(self) -> list[int]: ...

class Model:
    def __init__(self, isa: str, threads: int, max_rows: int) -> None: ...
    def lease_cores(self, lease: CoreLease) -> None: ...
    def use_weights(self, packed: NDArray[np.uint8]) -> None: ...
    def add_matrix(self, type: int, outputs: int, inputs: int, offset: int) -> int: ...
    def add_vector(self, values: NDArray[np.float32]) -> int: ...
    def add_buffer(self, width: int) -> int: ...
    def add_activations(self, width: int, with_floats: bool) -> int: ...
    def embed(self, type: int, vocab: int, width: int, data: NDArray[np.uint8], out: int) -> None: ...
    def norm(self, x: int, weight: int, eps: float, width: int, out: int) -> None: ...
    def linear(self, x: int, products: list[tuple[int, int, int, bool]]) -> None: ...
    def swiglu(self, x: int, gate: int, up: int, out: int) -> None: ...
    def attention(
        self,
        query: int,
        key: int,
        value: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        layer: int,
        dims: int,
        base: float,
        position_scale: float,
        halves: bool,
        factors: int,
        scale: float,
        key_factors: int,
        out: int,
    ) -> None: ...
    def head(self, x: int, weight: int, eps: float, width: int, matrix: int, vocab: int) -> None: ...
    def allocate_cache(self, layers: int, kv_heads: int, head_dim: int, int8: bool, blocks: int) -> None: ...
    def start(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequence_starts: NDArray[np.int32],
        block_table: NDArray[np.int32],
        yield_rows: NDArray[np.int32],
        yield_kinds: NDArray[np.uint8],
        sampling: NDArray[np.uint8],
        top_logprobs: NDArray[np.int32],
        history_starts: NDArray[np.int32],
        history: NDArray[np.int32],
        copies: list[tuple[int, int]],
        biases: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]] | None = None,
        scored: NDArray[np.int32] | None = None,
        mask_rows: NDArray[np.int32] | None = None,
    ) -> None: ...
    def finish(self, masks: NDArray[np.uint32] | None = None) -> None: ...
    def sampled(self) -> NDArray[np.int32]: ...
    def logits(self) -> NDArray[np.float32]: ...
    def hidden(self) -> NDArray[np.float32]: ...
    def logprobs(self, yield_: int, /) -> tuple[float, NDArray[np.int32], NDArray[np.float32]]: ...
    def cache_memory(self) -> NDArray[np.uint8]: ...
