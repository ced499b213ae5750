"""Qwen2 and Qwen2.5 (Yang et al., 2024): as Llama, with biases on query, key and value."""

from __future__ import annotations

from headrace.models.architectures.blocks import head, self_attention, swiglu_mlp
from headrace.models.config import ModelConfig
from headrace.models.graph import Graph
from headrace.models.weights import Weights


def qwen2(config: ModelConfig, weights: Weights) -> Graph:
    """Element i rotates with element i + dims/2."""
    graph = Graph()
    x = graph.embed("token_embd.weight")
    for layer in range(config.layers):
        normed = graph.rms_norm(x, f"blk.{layer}.attn_norm.weight", config.norm_eps)
        x = graph.add(x, self_attention(graph, config, normed, layer, pairing="halves", biases=True))
        normed = graph.rms_norm(x, f"blk.{layer}.ffn_norm.weight", config.norm_eps)
        x = graph.add(x, swiglu_mlp(graph, normed, layer))
    head(graph, config, weights, x)
    return graph
