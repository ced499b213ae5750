"""The vocabulary of ops in which an architecture describes its forward pass, and the description itself.

An op names its inputs and its output by number; a value is a float32 matrix of one row per token. Weights
are named by their tensor in the model file. Every backend runs the same list of ops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Value = int
"""The number of a value in a graph."""


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = weight[token[t]]"""

    weight: str
    out: Value


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out[t] = x[t] / sqrt(mean(x[t]²) + eps) · weight   (Zhang and Sennrich, 2019)"""

    x: Value
    weight: str
    eps: float
    out: Value


@dataclass(frozen=True, slots=True)
class Linear:
    """out[t] = weight · x[t] + bias; weight is [out_features, in_features] in the file."""

    x: Value
    weight: str
    bias: str | None
    out: Value


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al., 2021) over the first `dims` of each of `heads` heads.

    `pairing` says which two elements rotate together: "adjacent" (2i, 2i+1) or "halves" (i, i + dims/2).
    The angle of pair i at position p is p · scale · base^(-2i/dims), divided by element i of the tensor
    `factors` where given.
    """

    x: Value
    heads: int
    head_dim: int
    dims: int
    base: float
    scale: float
    pairing: Literal["adjacent", "halves"]
    factors: str | None
    out: Value


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention of `heads` query heads over `kv_heads` shared ones, through cache layer `layer`.

    Keys and values are rounded to the cache type before they are read. Query head h reads key-value head
    h // (heads / kv_heads) (Ainslie et al., 2023). Scores are multiplied by `scale`.
    """

    query: Value
    key: Value
    value: Value
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    out: Value


@dataclass(frozen=True, slots=True)
class SwiGlu:
    """out = gate · sigmoid(gate) · up   (Shazeer, 2020)"""

    gate: Value
    up: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Add:
    """out = a + b"""

    a: Value
    b: Value
    out: Value


Op = Embed | RmsNorm | Linear | Rope | Attention | SwiGlu | Add


@dataclass(slots=True)
class Graph:
    """A forward pass: ops in order. The last two values are the final hidden state and the logits."""

    ops: list[Op] = field(default_factory=list)
    hidden: Value = -1
    logits: Value = -1
    _values: int = 0

    def _new(self) -> Value:
        self._values += 1
        return self._values - 1

    def embed(self, weight: str) -> Value:
        self.ops.append(Embed(weight, out := self._new()))
        return out

    def rms_norm(self, x: Value, weight: str, eps: float) -> Value:
        self.ops.append(RmsNorm(x, weight, eps, out := self._new()))
        return out

    def linear(self, x: Value, weight: str, bias: str | None = None) -> Value:
        self.ops.append(Linear(x, weight, bias, out := self._new()))
        return out

    def rope(
        self,
        x: Value,
        *,
        heads: int,
        head_dim: int,
        dims: int,
        base: float,
        scale: float = 1.0,
        pairing: Literal["adjacent", "halves"],
        factors: str | None = None,
    ) -> Value:
        self.ops.append(Rope(x, heads, head_dim, dims, base, scale, pairing, factors, out := self._new()))
        return out

    def attention(
        self,
        query: Value,
        key: Value,
        value: Value,
        *,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
    ) -> Value:
        self.ops.append(
            Attention(query, key, value, layer, heads, kv_heads, head_dim, scale, out := self._new())
        )
        return out

    def swiglu(self, gate: Value, up: Value) -> Value:
        self.ops.append(SwiGlu(gate, up, out := self._new()))
        return out

    def add(self, a: Value, b: Value) -> Value:
        self.ops.append(Add(a, b, out := self._new()))
        return out

    def output(self, hidden: Value, logits: Value) -> None:
        """Names the results: the hidden state after the final norm, and the logits."""
        self.hidden, self.logits = hidden, logits
