"""From a model's name to an engine that is ready to run it; what worker, Python API and benchmarks share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.backends.base import Backend
from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.fingerprint import Fingerprint
from headrace.engine.engine import Engine, EngineConfig
from headrace.errors import ConfigError
from headrace.models.architectures import check_architecture
from headrace.models.config import ModelConfig
from headrace.models.gguf import GgufFile
from headrace.models.registry import blocks_folder, packed_folder, resolve_to_run
from headrace.models.sampling_defaults import SamplingDefaults
from headrace.models.weights import Weights
from headrace.worker.cache_size import CacheSize, cache_size
from headrace.worker.embeddings import Pooling, pooling_of
from headrace.worker.host import core_group, free_memory, usable_cpus
from headrace.worker.settings import WorkerSettings
from headrace.worker.speculate import check_vocabularies, make_speculation

if TYPE_CHECKING:
    from headrace.backends.cpu.lease import CoreLease
    from headrace.backends.cpu.packed_cache import PackedCache
    from headrace.worker.tiers.tiers import Tiers

log = logging.getLogger("headrace.worker")


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model file and what is read from it without computing.

    Whoever needs its vocabulary, tokenizer or chat template makes that of `weights.metadata`: a tokenizer
    takes a few tenths of a second, and a worker does without.
    """

    name: str
    weights: GgufFile
    config: ModelConfig
    sampling: SamplingDefaults


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can run, and what was decided while it was loaded."""

    name: str
    backend: Backend
    engine: Engine
    context_length: int
    """The most tokens of prompt and output together; lowered where memory is short."""
    cache_blocks: int
    cache_bytes: int
    prefix_cache: bool
    path: Path
    """Of the model's file."""
    pooling: Pooling | None
    tiers: Tiers | None = None
    """Where evicted blocks go, if anywhere."""

    @property
    def fingerprint(self) -> Fingerprint:
        return self.backend.fingerprint

    def close(self) -> None:
        """Releases threads and memory."""
        if self.tiers is not None:
            self.tiers.close()
        self.backend.close()
        if self.engine.speculation is not None:
            self.engine.speculation.close()


def open_model(model: str) -> OpenModel:
    """Opens a model by its name, which fetches it on first use, or by the path of its file.

    Raises:
        ModelNotFoundError, DownloadError: it cannot be had.
        ModelFileError: the file is broken or unsupported.
    """
    local = resolve_to_run(model)
    weights = GgufFile(local.path)
    check_architecture(weights.metadata.get("general.architecture"))
    return OpenModel(
        name=local.name,
        weights=weights,
        config=ModelConfig.from_weights(weights),
        sampling=local.sampling or SamplingDefaults.from_metadata(weights.metadata),
    )


def load(model: OpenModel, settings: WorkerSettings) -> LoadedModel:
    """Makes a backend, its cache, and an engine for a model that is open.

    Raises:
        ModelFileError: a tensor is broken or unsupported.
        ConfigError, CacheTooSmallError: the cache that the settings ask for cannot be had.
        ModelNotFoundError, DownloadError, ConfigError: there is no draft model, or it is of another kind.
    """
    draft = None if settings.draft_model is None else open_model(settings.draft_model)
    if draft is not None:
        check_vocabularies(model.weights, draft.weights, draft.name)
    lease = _lease_cores(settings)
    backend = make_backend(model.weights, settings, lease)
    draft_backend = None if draft is None else make_backend(draft.weights, settings, lease)
    backends = [backend] if draft_backend is None else [backend, draft_backend]
    size = _size_cache(backends, model.config, settings)
    engine = Engine(
        backend,
        EngineConfig(
            max_batch_tokens=settings.max_batch_tokens,
            max_running=settings.max_running,
            cache_blocks=size.blocks,
            max_pinned_blocks=size.pinnable,
        ),
        make_speculation(settings, draft_backend, size.blocks),
    )
    return LoadedModel(
        name=model.name,
        backend=backend,
        engine=engine,
        context_length=size.context_length,
        cache_blocks=size.blocks,
        cache_bytes=size.bytes,
        prefix_cache=settings.prefix_cache,
        path=model.weights.path,
        pooling=pooling_of(model.weights.metadata),
        tiers=_make_tiers(engine, settings),
    )


def make_backend(weights: Weights, settings: WorkerSettings, lease: CoreLease | None = None) -> Backend:
    """The backend that the settings name; imported here, as a worker needs but one.

    The models of a worker, which compute by turns in any case, share a lease of cores.
    """
    if settings.backend == "reference":
        from headrace.backends.reference import ReferenceBackend

        if settings.kv_dtype == "int8":
            raise ConfigError("kv-dtype: the reference backend has no int8 cache")
        return ReferenceBackend(weights, max_rows=settings.max_batch_tokens)
    from headrace.backends.cpu import CpuBackend

    return CpuBackend(
        weights,
        threads=settings.threads or usable_cpus(),
        max_rows=settings.max_batch_tokens,
        kv_dtype=settings.kv_dtype,
        packed_cache=_packed_cache() if settings.packed_cache else None,
        lease=lease,
    )


def _packed_cache() -> PackedCache | None:
    from headrace.backends.cpu.packed_cache import PackedCache

    try:
        return PackedCache(packed_folder())
    except ConfigError as error:
        log.warning("packed weights are not kept: %s", error)
        return None


def _lease_cores(settings: WorkerSettings) -> CoreLease | None:
    if settings.backend == "reference":
        return None
    from headrace.backends.cpu.lease import lease_file, open_lease

    group = core_group()
    return open_lease(lease_file(group.name), group.cores, settings.threads or usable_cpus())


def _make_tiers(engine: Engine, settings: WorkerSettings) -> Tiers | None:
    if not (settings.cache_disk_bytes and settings.prefix_cache):
        return None
    from headrace.worker.tiers.tiers import Tiers

    folder = blocks_folder() if settings.cache_dir is None else Path(settings.cache_dir).expanduser()
    try:
        return Tiers(engine, folder, settings.cache_disk_bytes)
    except OSError as error:
        raise ConfigError(f"cache-dir: {folder} cannot be used: {error.strerror or error}") from error


def _size_cache(backends: Sequence[Backend], config: ModelConfig, settings: WorkerSettings) -> CacheSize:
    """Each backend's cache holds as many tokens as the others'."""
    size = cache_size(
        block_bytes=sum(backend.cache_spec.bytes_per_block() for backend in backends),
        model_context=config.context_length,
        context_length=settings.context_length,
        max_running=settings.max_running,
        free_bytes=free_memory() - sum(backend.page_cache_bytes for backend in backends),
        cache_tokens=settings.cache_tokens,
        cache_bytes=settings.cache_bytes,
        workers=settings.workers,
    )
    if size.context_length < (settings.context_length or config.context_length):
        log.warning(
            "context lowered from %d to %d tokens, which is what the cache holds; "
            "more memory or a larger %s raises it",
            config.context_length,
            size.context_length,
            "--cache-gib" if settings.cache_tokens is None else "--cache-tokens",
        )
    tokens = size.blocks * BLOCK_TOKENS
    log.info("cache: %d blocks, %d tokens; context: %d tokens", size.blocks, tokens, size.context_length)
    return size
