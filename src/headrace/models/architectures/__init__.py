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


def check_architecture(name: object) -> None:
    """Raises ModelFileError for an architecture that is not known.

    To be asked first of a file: one of another architecture may lack whatever else is looked for.
    """
    if not isinstance(name, str):
        raise ModelFileError("general.architecture: expected a string")
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelFileError(f"general.architecture: {name!r} is not supported (known: {known})")


def build_graph(config: ModelConfig, weights: Weights) -> Graph:
    """The forward pass of a model. Raises ModelFileError for an architecture that is not known."""
    check_architecture(config.architecture)
    return ARCHITECTURES[config.architecture](config, weights)
