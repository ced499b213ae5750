"""The backend that serves on CPUs: plans in, tokens out, through the native core."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.backends.base import Ticket
from headrace.backends.cache import CacheGroup, CacheSpec
from headrace.backends.cpu.compile import compile_plan
from headrace.backends.cpu.lease import CoreLease
from headrace.backends.cpu.packed_cache import PackedCache
from headrace.backends.fingerprint import Fingerprint
from headrace.backends.step import StepPlan, StepResult, TopLogprobs, Yield
from headrace.errors import ConfigError
from headrace.models.architectures import build_graph
from headrace.models.check import check_tensors
from headrace.models.config import ModelConfig
from headrace.models.weights import Weights

_WITH_LOGPROBS = (Yield.TOKEN, Yield.SCORE)


def choose_isa(wanted: str | None = None) -> tuple[str, str]:
    """(instruction set, kernel class): the best there is, or the one that HEADRACE_ISA or `wanted` names."""
    available = _native.available_isas()
    wanted = wanted or os.environ.get("HEADRACE_ISA")
    if not wanted:
        return available[0]
    for isa, numerics in available:
        if isa == wanted:
            return isa, numerics
    names = ", ".join(isa for isa, _ in available)
    raise ConfigError(f"HEADRACE_ISA: {wanted!r} is not available on this processor (available: {names})")


class CpuBackend:
    """Implements `headrace.backends.base.Backend`."""

    def __init__(
        self,
        weights: Weights,
        *,
        threads: int,
        isa: str | None = None,
        max_rows: int = 512,
        kv_dtype: Literal["f16", "int8"] = "f16",
        packed_cache: PackedCache | None = None,
        lease: CoreLease | None = None,
    ) -> None:
        """Packs the weights, or takes them from `packed_cache`. Steps hold the cores of `lease`, if any.

        Raises ModelFileError for a model that is broken or not supported.
        """
        self.isa, numerics = choose_isa(isa)
        self.threads = threads
        config = ModelConfig.from_weights(weights)
        graph = build_graph(config, weights)
        check_tensors(graph, config, weights)
        self._model: _native.Model | None
        self._model, packed = compile_plan(
            graph,
            config,
            weights,
            isa=self.isa,
            threads=threads,
            max_rows=max_rows,
            int8_cache=kv_dtype == "int8",
            packed_cache=packed_cache,
        )
        if lease is not None:
            self._model.lease_cores(lease)
        self._page_cache_bytes = packed.memory.size if packed.shared else 0
        self._config = config
        self._max_rows = max_rows
        self._plan: StepPlan | None = None
        self._blocks: NDArray[np.uint8] | None = None
        layers = tuple(range(config.layers))
        group = CacheGroup("main", layers, config.kv_heads, config.head_dim, kv_dtype)
        self._cache_spec = CacheSpec((group,), layout=f"keys-by-element-{kv_dtype}")
        self._fingerprint = Fingerprint(
            weights=weights.digest(),
            layout=self._cache_spec.layout,
            kernels=f"cpu-int8x32-{numerics}",
            cache_dtype=group.dtype,
        )

    @property
    def cache_spec(self) -> CacheSpec:
        return self._cache_spec

    @property
    def fingerprint(self) -> Fingerprint:
        return self._fingerprint

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def max_rows(self) -> int:
        return self._max_rows

    @property
    def page_cache_bytes(self) -> int:
        return self._page_cache_bytes

    @property
    def _native_model(self) -> _native.Model:
        if self._model is None:
            raise RuntimeError("the backend is closed")
        return self._model

    def allocate_cache(self, blocks: Sequence[int]) -> None:
        (group,), (count,) = self._cache_spec.groups, blocks
        self._native_model.allocate_cache(
            len(group.layers), group.kv_heads, group.head_dim, group.dtype == "int8", count
        )
        self._blocks = self._native_model.cache_memory()

    def submit(self, plan: StepPlan) -> Ticket:
        assert self._plan is None, "one step is in flight at a time"
        assert plan.draft_lengths is None and plan.adapters is None
        # A copy takes the whole block: the tokens past `tokens` are overwritten before anyone reads them.
        self._native_model.start(
            plan.tokens,
            plan.positions,
            plan.sequence_starts,
            plan.block_tables[0],
            plan.yield_rows,
            plan.yield_kinds,
            plan.sampling.view(np.uint8),
            plan.top_logprobs,
            plan.history_starts,
            plan.history,
            [(copy.source, copy.target) for copy in plan.copies],
            plan.biases,
            plan.scored,
            None if plan.token_masks is None else plan.token_masks.rows,
        )
        self._plan = plan
        return Ticket(0)

    def collect(self, ticket: Ticket) -> StepResult:
        plan, model = self._plan, self._native_model
        assert plan is not None, "collect follows submit"
        self._plan = None
        model.finish(None if plan.token_masks is None else plan.token_masks.bits)
        logprobs: tuple[TopLogprobs | None, ...] | None = None
        if (plan.top_logprobs >= 0).any():
            logprobs = tuple(
                TopLogprobs(*model.logprobs(row)) if wanted >= 0 and kind in _WITH_LOGPROBS else None
                for row, (wanted, kind) in enumerate(zip(plan.top_logprobs, plan.yield_kinds, strict=True))
            )
        return StepResult(
            tokens=model.sampled(),
            logprobs=logprobs,
            logits=model.logits() if (plan.yield_kinds == Yield.LOGITS).any() else None,
            hidden=model.hidden() if (plan.yield_kinds == Yield.HIDDEN).any() else None,
        )

    def block_view(self, group: int, block: int) -> memoryview:
        assert group == 0 and self._blocks is not None and 0 <= block < len(self._blocks)
        return memoryview(self._blocks[block])

    def close(self) -> None:
        self._model = self._blocks = None
