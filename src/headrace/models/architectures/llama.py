"""Llama (Touvron et al., 2023) and the many models that share its shape, SmolLM2 among them."""

from __future__ import annotations

from headrace.models.architectures.blocks import head, self_attention, swiglu_mlp
from headrace.models.config import ModelConfig
from headrace.models.graph import Graph
from headrace.models.weights import Weights


def llama(config: ModelConfig, weights: Weights) -> Graph:
    """The file stores query and key rows so that neighbouring elements rotate together."""
    graph = Graph()
    factors = "rope_freqs.weight" if "rope_freqs.weight" in weights else None
    x = graph.embed("token_embd.weight")
    for layer in range(config.layers):
        normed = graph.rms_norm(x, f"blk.{layer}.attn_norm.weight", config.norm_eps)
        x = graph.add(x, self_attention(graph, config, normed, layer, pairing="adjacent", factors=factors))
        normed = graph.rms_norm(x, f"blk.{layer}.ffn_norm.weight", config.norm_eps)
        x = graph.add(x, swiglu_mlp(graph, normed, layer))
    head(graph, config, weights, x)
    return graph
