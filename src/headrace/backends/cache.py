"""What a model keeps for every token it has read: the cache spec, in groups of layers, in blocks."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_TOKENS = 16
"""Tokens in a block, on every backend: the unit of allocation, sharing, transfer and the prefix tree."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table and one pool.

    A plain model has one group. A sliding-window model has a second one, a draft model brings its own.
    """

    name: str
    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    dtype: str = "f16"
    """f16, f32, or int8, which has scales: halves for every 4 elements of a key, a float for each value."""
    window: int | None = None
    """Tokens a layer looks back, None for all."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: keys and values of BLOCK_TOKENS tokens in every layer of the group."""
        key_and_value = {
            "f16": 2 * 2 * self.head_dim,
            "f32": 2 * 4 * self.head_dim,
            "int8": 2 * self.head_dim + 2 * (self.head_dim // 4) + 4,
        }
        return len(self.layers) * self.kv_heads * key_and_value[self.dtype] * BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The groups of a model's cache, and the name of how a block's bytes are laid out.

    Above the backend a block is opaque: bytes, which move only between equal layouts.
    """

    groups: tuple[CacheGroup, ...]
    layout: str

    def bytes_per_block(self) -> int:
        """Bytes of one block in every group."""
        return sum(group.block_bytes for group in self.groups)
