"""A model's hyperparameters, read from its file and checked before anything is built on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from headrace.errors import ModelFileError
from headrace.models.weights import Weights

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Hyperparameters under their usual names; lengths in elements, context in tokens."""

    architecture: str
    context_length: int
    vocab_size: int
    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_base: float
    rope_scale: float
    """Multiplies positions: 1 / factor of a linearly scaled rope."""
    norm_eps: float

    @classmethod
    def from_weights(cls, weights: Weights) -> ModelConfig:
        """Raises ModelFileError, naming the key, for a value that is missing or senseless."""
        read = _Reader(weights)
        heads = read.integer("attention.head_count", 1)
        embedding = read.integer("embedding_length", 1)
        if embedding % heads and not read.has("attention.key_length"):
            raise ModelFileError(
                f"{read.key('embedding_length')}: {embedding} does not divide by {heads} heads"
            )
        head_dim = read.integer("attention.key_length", 2, default=embedding // heads)
        if read.integer("attention.value_length", 2, default=head_dim) != head_dim:
            raise ModelFileError(f"{read.key('attention.value_length')}: must equal key_length, {head_dim}")
        kv_heads = read.integer("attention.head_count_kv", 1, default=heads)
        if heads % kv_heads:
            raise ModelFileError(
                f"{read.key('attention.head_count_kv')}: {heads} heads do not divide by {kv_heads}"
            )
        rope_dims = read.integer("rope.dimension_count", 2, default=head_dim)
        if rope_dims % 2 or rope_dims > head_dim:
            raise ModelFileError(f"{read.key('rope.dimension_count')}: {rope_dims} for heads of {head_dim}")
        scaling = weights.metadata.get(read.key("rope.scaling.type"), "none")
        if scaling not in ("none", "linear"):
            raise ModelFileError(f"{read.key('rope.scaling.type')}: {scaling!r} is not supported")
        factor = read.real("rope.scaling.factor", default=1.0) if scaling == "linear" else 1.0
        return cls(
            architecture=read.architecture,
            context_length=read.integer("context_length", 1),
            vocab_size=_vocab_size(weights),
            layers=read.integer("block_count", 1),
            embedding=embedding,
            feed_forward=read.integer("feed_forward_length", 1),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope_dims=rope_dims,
            rope_base=read.real("rope.freq_base", default=10000.0),
            rope_scale=1.0 / factor,
            norm_eps=read.real("attention.layer_norm_rms_epsilon"),
        )


def _vocab_size(weights: Weights) -> int:
    tokens = weights.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, (list, np.ndarray)) or not len(tokens):
        raise ModelFileError("tokenizer.ggml.tokens: expected a list of tokens")
    return len(tokens)


class _Reader:
    """Typed, checked access to the keys of a file's architecture."""

    def __init__(self, weights: Weights) -> None:
        self._metadata = weights.metadata
        architecture = self._metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise ModelFileError("general.architecture: expected a string")
        self.architecture = architecture

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        return self.key(name) in self._metadata

    def integer(self, name: str, least: int, *, default: int | None = None) -> int:
        value = self._metadata.get(self.key(name), default)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ModelFileError(f"{self.key(name)}: expected an integer, found {_found(value)}")
        if not least <= value < 2**31:
            raise ModelFileError(f"{self.key(name)}: {value} is out of range")
        return int(value)

    def real(self, name: str, *, default: float | None = None) -> float:
        value = self._metadata.get(self.key(name), default)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
            raise ModelFileError(f"{self.key(name)}: expected a number, found {_found(value)}")
        if not 0 < value < float("inf"):
            raise ModelFileError(f"{self.key(name)}: {value} is out of range")
        return float(value)


def _found(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
