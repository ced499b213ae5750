"""A request's bits depend on its own prompt, parameters and seed alone.

Everything here compares with `==`: teacher-forced logits of all positions, and sampled tokens, of one
request computed in the plainest way against the same request in every other circumstance.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from headrace import _native
from headrace.backends.cpu import CpuBackend
from headrace.backends.sampling import SamplingParams
from headrace.backends.step import Yield
from headrace.engine.engine import Engine, EngineConfig
from headrace.engine.request import PrefixNamespace, Request
from headrace.models.gguf import GgufFile
from headrace.models.weights import Tensor, Weights
from plans import Rows, blocks_for, step_plan

ISAS = [isa for isa, _ in _native.available_isas()]
SAMPLING = SamplingParams(temperature=0.9, top_p=0.95, seed=2026)
NEW_TOKENS = 6


class FirstLayers:
    """The first few layers of an open model of which all layers are alike: as wide, and sooner computed."""

    def __init__(self, weights: GgufFile, layers: int = 8) -> None:
        kinds: dict[str, dict[str, object]] = {}
        for tensor in map(weights.tensor, weights):
            if tensor.name.startswith("blk."):
                _, layer, name = tensor.name.split(".", 2)
                kinds.setdefault(layer, {})[name] = tensor.type, tensor.shape
        assert len(kinds) > layers and all(each == kinds["0"] for each in kinds.values())
        self._weights = weights
        architecture = weights.metadata["general.architecture"]
        self.metadata = {**weights.metadata, f"{architecture}.block_count": layers}

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def tensor(self, name: str) -> Tensor:
        return self._weights.tensor(name)

    def digest(self) -> str:
        return f"the first layers of {self._weights.digest()}"


class Model(NamedTuple):
    """A model under test on one instruction set, and the length of prompt that it can afford."""

    name: str
    weights: Weights
    isa: str
    length: int

    @cache  # noqa: B019 - until the tests of a model have ended
    def backend(self, threads: int = 2) -> CpuBackend:
        kv_dtype = "int8" if "int8" in self.name else "f16"
        return CpuBackend(self.weights, threads=threads, isa=self.isa, kv_dtype=kv_dtype)

    @cache  # noqa: B019
    def prompt(self) -> tuple[int, ...]:
        draw = np.random.default_rng(11).integers(0, self.backend().vocab_size - 3, self.length)
        return tuple(int(token) for token in draw)

    @cache  # noqa: B019
    def plain(self) -> Run:
        """Alone, in one thread, its prompt in chunks of 64."""
        return run(self.backend(1), self.prompt(), chunk=64)


class Run(NamedTuple):
    logits: np.ndarray
    """[prompt length, vocab], NaN where a position was not computed."""
    tokens: tuple[int, ...]
    cached: int


@pytest.fixture(scope="module", params=["synthetic", "synthetic, int8 cache", "smollm2-135m"])
def weights(request, synthetic_model, model_path) -> Iterator[tuple[str, GgufFile]]:
    path = synthetic_model if is_small(request.param) else model_path(request.param)
    with GgufFile(path) as weights:
        yield request.param, weights


def is_small(name: str) -> bool:
    return name.startswith("synthetic")


@pytest.fixture(scope="module", params=ISAS)
def model(request, weights) -> Iterator[Model]:
    name, file = weights
    if is_small(name) or request.param == ISAS[0]:
        yield Model(name, file, request.param, 530)  # three parts of 256 tokens
    else:
        yield Model(name, FirstLayers(file), request.param, 275)  # two, where the kernels are slow
    for kept in (Model.backend, Model.prompt, Model.plain):
        kept.cache_clear()


def a_request(prompt: tuple[int, ...], name: str = "measured", **options) -> Request:
    options = {"max_tokens": NEW_TOKENS, "sampling": SAMPLING, "prompt_logits": True, **options}
    return Request(id=name, prompt=prompt, namespace=PrefixNamespace("m"), **options)


def drain(engine: Engine, prompt: tuple[int, ...]) -> Run:
    """Runs all the engine has, and reports on the request named "measured"."""
    logits = np.full((len(prompt), engine.backend.vocab_size), np.nan, np.float32)
    tokens: list[int] = []
    cached = 0
    while engine.submit():
        for output in engine.collect():
            if output.id != "measured":
                continue
            if output.prompt_logits is not None:
                start = output.logits_start
                logits[start : start + len(output.prompt_logits)] = output.prompt_logits
            tokens += output.token_ids
            cached = output.cached_tokens
    return Run(logits, tuple(tokens), cached)


def run(backend: CpuBackend, prompt: tuple[int, ...], *, chunk: int) -> Run:
    engine = Engine(backend, EngineConfig(cache_blocks=64, prefill_chunk=chunk))
    engine.add(a_request(prompt, use_prefix_cache=False))
    return drain(engine, prompt)


def assert_same(found: Run, plain: Run, start: int = 0) -> None:
    assert found.tokens == plain.tokens
    assert np.array_equal(found.logits[start:], plain.logits[start:])


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_however_the_prompt_is_chunked(model, chunk):
    length = model.length if is_small(model.name) or chunk > 1 else 40
    prompt = model.prompt()[:length]
    found = run(model.backend(), prompt, chunk=chunk)
    assert np.array_equal(found.logits, model.plain().logits[:length])
    if length == model.length:
        assert found.tokens == model.plain().tokens


@pytest.mark.parametrize("threads", [1, 3])
def test_whatever_the_number_of_threads(model, threads):
    """Two, as everywhere else, have computed a whole prompt above."""
    assert_same(run(model.backend(threads), model.prompt(), chunk=512), model.plain())


def test_in_batches_of_1_to_67_rows_of_strangers(model):
    """Some rows of the request, its context in the cache, between rows of other sequences."""
    backend, prompt = model.backend(), model.prompt()
    backend.allocate_cache([256])
    table = [*blocks_for(model.length, first=100)]
    backend.collect(backend.submit(step_plan(Rows(prompt[:512], table, yielding="none"))))
    plain = model.plain().logits
    counts = range(1, 68) if is_small(model.name) or model.isa == ISAS[0] else (1, 2, 3, 5, 13, 32, 67)
    draw = np.random.default_rng(5)
    tokens = set()
    for rows in counts:
        own = int(draw.integers(1, min(rows, 9) + 1))
        start = model.length // 2 - own // 2
        others = [
            Rows([int(draw.integers(300))], [i], int(draw.integers(16)), yielding="none")
            for i in range(rows - own)
        ]
        position = int(draw.integers(len(others) + 1))
        measured = Rows(prompt[start : start + own], table, start)
        logits = backend.collect(
            backend.submit(step_plan(*others[:position], measured, *others[position:]))
        ).logits
        assert np.array_equal(logits, plain[start : start + own]), f"{rows} rows"
        last = Rows([prompt[250]], table, 250, kind=Yield.TOKEN, sampling=SAMPLING)
        tokens.add(int(backend.collect(backend.submit(step_plan(*others, last))).tokens[0]))
    assert len(tokens) == 1


@pytest.mark.parametrize("offset", range(16))
def test_after_a_prefix_hit_at_every_offset_within_a_block(model, offset):
    prompt = model.prompt()
    if not is_small(model.name) and (model.isa != ISAS[0] or offset % 5):
        prompt = prompt[:60]
    hit = len(prompt) // 32 * 16 + offset
    engine = Engine(model.backend(), EngineConfig(cache_blocks=80))
    engine.add(a_request(prompt[:hit], "first", max_tokens=1, prompt_logits=False))
    drain(engine, prompt)
    engine.add(a_request(prompt, max_tokens=NEW_TOKENS if len(prompt) == model.length else 1))
    found = drain(engine, prompt)
    assert found.cached == hit
    assert np.isnan(found.logits[:hit]).all()
    assert np.array_equal(found.logits[hit:], model.plain().logits[hit : len(prompt)])
    if len(prompt) == model.length:
        assert found.tokens == model.plain().tokens


def test_after_preemption(model):
    """Two requests that both fit at first and then outgrow the cache."""
    prompt = model.prompt()[: 16 * 8 - 2]
    alone = Engine(model.backend(), EngineConfig(cache_blocks=64))
    alone.add(a_request(prompt, max_tokens=20))
    plain = drain(alone, prompt)
    engine = Engine(model.backend(), EngineConfig(cache_blocks=17))
    engine.add(a_request(model.prompt()[5 : 16 * 8], "other", max_tokens=30, prompt_logits=False))
    engine.add(a_request(prompt, max_tokens=20))
    found = drain(engine, prompt)
    assert engine.stats.preemptions > 0
    assert found.tokens == plain.tokens
    computed = ~np.isnan(found.logits[:, 0])
    assert computed.any()
    assert np.array_equal(found.logits[computed], model.plain().logits[: len(prompt)][computed])


def test_after_output_that_was_computed_elsewhere(model):
    plain = model.plain()
    for known in (1, 4):
        engine = Engine(model.backend(), EngineConfig(cache_blocks=64))
        engine.add(a_request(model.prompt(), output=plain.tokens[:known]))
        assert drain(engine, model.prompt()).tokens == plain.tokens[known:]


def test_blocks_that_were_copied_through_their_views(model):
    backend, prompt = model.backend(), model.prompt()[:48]
    backend.allocate_cache([8])
    backend.collect(backend.submit(step_plan(Rows(prompt[:32], [0, 1], yielding="none"))))
    for source, target in ((0, 5), (1, 4)):
        backend.block_view(0, target)[:] = backend.block_view(0, source)
    logits = backend.collect(backend.submit(step_plan(Rows(prompt[32:], [5, 4, 7], 32)))).logits
    assert np.array_equal(logits, model.plain().logits[32:48])


def test_on_every_instruction_set_of_one_kernel_class(weights):
    name, file = weights
    classes: dict[str, list[str]] = {}
    for isa, numerics in _native.available_isas():
        classes.setdefault(numerics, []).append(isa)
    for isas in classes.values():
        first, *rest = (Model(name, file, isa, 275) for isa in isas)
        for other in rest:
            assert_same(run(other.backend(), other.prompt(), chunk=512), first.plain())
