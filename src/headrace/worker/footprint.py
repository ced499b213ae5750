"""How much memory a model will take, known from its file before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.backends.cache import CacheGroup
from headrace.worker.cache_size import cache_size
from headrace.worker.loader import OpenModel
from headrace.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a model in memory."""

    weights: int
    """Packed weights keep the file's bits and scales, so they are about as large as the file."""
    cache: int

    @property
    def bytes(self) -> int:
        return self.weights + self.cache


def weights_bytes(models: Sequence[OpenModel]) -> int:
    """Bytes of the models' weights in memory."""
    return sum(model.weights.path.stat().st_size for model in models)


def footprint(models: Sequence[OpenModel], settings: WorkerSettings, free_bytes: int) -> Footprint:
    """What a worker of these settings would take of so many free bytes for a model and its draft model.

    Raises ConfigError or CacheTooSmallError as the worker would: they do not hold what the settings ask for.
    """
    weights = weights_bytes(models)
    size = cache_size(
        block_bytes=sum(_block_bytes(model, settings) for model in models),
        model_context=models[0].config.context_length,
        context_length=settings.context_length,
        max_running=settings.max_running,
        free_bytes=max(0, free_bytes - weights),
        cache_tokens=settings.cache_tokens,
        cache_bytes=settings.cache_bytes,
        workers=settings.workers,
    )
    return Footprint(weights, size.bytes)


def _block_bytes(model: OpenModel, settings: WorkerSettings) -> int:
    config = model.config
    dtype = "f32" if settings.backend == "reference" else settings.kv_dtype
    layers = tuple(range(config.layers))
    return CacheGroup("main", layers, config.kv_heads, config.head_dim, dtype).block_bytes
