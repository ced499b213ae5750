"""Parts that many architectures share, each a few ops over the tensors of one block."""

from __future__ import annotations

from typing import Literal

from headrace.models.config import ModelConfig
from headrace.models.graph import Graph, Value
from headrace.models.weights import Weights


def self_attention(
    graph: Graph,
    config: ModelConfig,
    x: Value,
    layer: int,
    *,
    pairing: Literal["adjacent", "halves"],
    biases: bool = False,
    factors: str | None = None,
) -> Value:
    """Projections, rope on query and key, attention through the cache, and the output projection."""

    def project(name: str) -> Value:
        tensor = f"blk.{layer}.attn_{name}"
        return graph.linear(x, f"{tensor}.weight", f"{tensor}.bias" if biases else None)

    def rotate(rotated: Value, heads: int) -> Value:
        return graph.rope(
            rotated,
            heads=heads,
            head_dim=config.head_dim,
            dims=config.rope_dims,
            base=config.rope_base,
            scale=config.rope_scale,
            pairing=pairing,
            factors=factors,
        )

    query, key, value = (project(name) for name in "qkv")
    attended = graph.attention(
        rotate(query, config.heads),
        rotate(key, config.kv_heads),
        value,
        layer=layer,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
    )
    return graph.linear(attended, f"blk.{layer}.attn_output.weight")


def swiglu_mlp(graph: Graph, x: Value, layer: int) -> Value:
    """The gated feed-forward network."""
    gate = graph.linear(x, f"blk.{layer}.ffn_gate.weight")
    up = graph.linear(x, f"blk.{layer}.ffn_up.weight")
    return graph.linear(graph.swiglu(gate, up), f"blk.{layer}.ffn_down.weight")


def head(graph: Graph, config: ModelConfig, weights: Weights, x: Value) -> None:
    """The final norm and the output matrix, which is the embedding's where the file has none of its own."""
    hidden = graph.rms_norm(x, "output_norm.weight", config.norm_eps)
    matrix = "output.weight" if "output.weight" in weights else "token_embd.weight"
    graph.output(hidden, graph.linear(hidden, matrix))
