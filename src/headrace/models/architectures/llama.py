"""Llama (Touvron et al., 2023) and the many models that share its shape, SmolLM2 among them."""

from __future__ import annotations

from headrace.models.config import ModelConfig
from headrace.models.graph import Graph
from headrace.models.weights import Weights


def llama(config: ModelConfig, weights: Weights) -> Graph:
    """The file stores query and key rows so that neighbouring elements rotate together."""
    graph = Graph()
    factors = "rope_freqs.weight" if "rope_freqs.weight" in weights else None
    x = graph.embed("token_embd.weight")
    for layer in range(config.layers):
        block = f"blk.{layer}."
        normed = graph.rms_norm(x, block + "attn_norm.weight", config.norm_eps)
        query, key, value = (graph.linear(normed, f"{block}attn_{name}.weight") for name in "qkv")
        query, key = (
            graph.rope(
                rotated,
                heads=heads,
                head_dim=config.head_dim,
                dims=config.rope_dims,
                base=config.rope_base,
                scale=config.rope_scale,
                pairing="adjacent",
                factors=factors,
            )
            for rotated, heads in ((query, config.heads), (key, config.kv_heads))
        )
        attended = graph.attention(
            query,
            key,
            value,
            layer=layer,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
        )
        x = graph.add(x, graph.linear(attended, block + "attn_output.weight"))
        normed = graph.rms_norm(x, block + "ffn_norm.weight", config.norm_eps)
        gate = graph.linear(normed, block + "ffn_gate.weight")
        up = graph.linear(normed, block + "ffn_up.weight")
        x = graph.add(x, graph.linear(graph.swiglu(gate, up), block + "ffn_down.weight"))
    hidden = graph.rms_norm(x, "output_norm.weight", config.norm_eps)
    tied = "output.weight" not in weights
    graph.output(hidden, graph.linear(hidden, "token_embd.weight" if tied else "output.weight"))
    return graph
