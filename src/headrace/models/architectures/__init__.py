"""Architectures by the name a model file gives: each one short function from hyperparameters to a graph."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import ModelFileError
from headrace.models.architectures.llama import llama
from headrace.models.architectures.qwen2 import qwen2
from headrace.models.config import ModelConfig
from headrace.models.graph import Graph
from headrace.models.weights import Weights

ARCHITECTURES: dict[str, Callable[[ModelConfig, Weights], Graph]] = {"llama": llama, "qwen2": qwen2}


def build_graph(config: ModelConfig, weights: Weights) -> Graph:
    """The forward pass of a model. Raises ModelFileError for an architecture that is not known."""
    architecture = ARCHITECTURES.get(config.architecture)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelFileError(
            f"general.architecture: {config.architecture!r} is not supported (known: {known})"
        )
    return architecture(config, weights)
