"""The CPU backend against its definitions: dequantised rows, NumPy reference, sampler; and bad plans."""

from __future__ import annotations

import math
import time
from threading import Event, Thread

import numpy as np
import pytest

from headrace import _native
from headrace.backends.cpu import CpuBackend
from headrace.backends.cpu.backend import choose_isa
from headrace.backends.reference import ReferenceBackend
from headrace.backends.reference_sampler import log_softmax, sample
from headrace.backends.sampling import SAMPLING_DTYPE, SamplingParams
from headrace.backends.step import BlockCopy, TokenMasks, Yield
from headrace.errors import ConfigError, ModelFileError
from headrace.models.gguf import GgufFile
from headrace.models.quants import dequantize
from headrace.models.weights import TensorType
from plans import Rows, blocks_for, step_plan, teacher_forced
from synthetic import write_synthetic

ISAS = [isa for isa, _ in _native.available_isas()]
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 300, 90)]


@pytest.fixture(scope="module", params=ISAS)
def isa(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def backend(isa, synthetic_model) -> CpuBackend:
    backend = CpuBackend(GgufFile(synthetic_model), threads=2, isa=isa)
    backend.allocate_cache([64])
    return backend


def step(backend, *rows, **options):
    return backend.collect(backend.submit(step_plan(*rows, **options)))


def test_the_sampling_record_is_the_same_on_both_sides():
    assert SAMPLING_DTYPE.itemsize == _native.SAMPLING_RECORD_BYTES


def test_rows_dequantise_as_in_python(synthetic_model):
    weights = GgufFile(synthetic_model)
    for name in weights:
        tensor = weights.tensor(name)
        expected = dequantize(tensor)
        if expected.ndim == 2:
            rows = tensor.data.reshape(expected.shape[0], -1)
            for row in (0, len(rows) - 1):
                found = _native.dequantize_row(tensor.type, expected.shape[1], rows[row])
                assert np.array_equal(found, expected[row]), name


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", [*TensorType], ids=lambda kind: kind.name)
def test_every_format_stays_near_the_reference(isa, kind, architecture, tmp_path):
    """Only the activations' rounding to eight bits stands between them, and not even that for floats."""
    weights = GgufFile(write_synthetic(tmp_path / "m.gguf", architecture=architecture, types=kind))
    cpu = CpuBackend(weights, threads=2, isa=isa)
    reference = ReferenceBackend(weights, cache_dtype="f16")
    for backend in (cpu, reference):
        backend.allocate_cache([8])
    found = log_softmax_rows(teacher_forced(cpu, TOKENS))
    expected = log_softmax_rows(teacher_forced(reference, TOKENS))
    bound = 2e-3 if kind in (TensorType.F32, TensorType.F16, TensorType.BF16) else 0.05
    assert np.abs(found - expected).mean() < bound


def test_an_int8_cache_stays_near_the_reference(isa, synthetic_model):
    weights = GgufFile(synthetic_model)
    cpu = CpuBackend(weights, threads=2, isa=isa, kv_dtype="int8")
    reference = ReferenceBackend(weights, cache_dtype="f16")
    for backend in (cpu, reference):
        backend.allocate_cache([8])
    found = log_softmax_rows(teacher_forced(cpu, TOKENS))
    expected = log_softmax_rows(teacher_forced(reference, TOKENS))
    assert np.abs(found - expected).mean() < 0.05
    assert cpu.cache_spec.bytes_per_block() < 0.65 * reference.cache_spec.bytes_per_block()
    assert len(cpu.block_view(0, 0)) == cpu.cache_spec.bytes_per_block()


def log_softmax_rows(logits: np.ndarray) -> np.ndarray:
    return np.stack([log_softmax(row) for row in logits])


def test_the_sampler_draws_what_its_definition_draws(backend):
    draw = np.random.default_rng(17)
    logits = step(backend, Rows(TOKENS, blocks_for(90))).logits
    vocab = backend.vocab_size
    for case in range(400):
        params = SamplingParams(
            temperature=float(draw.choice([0.0, 0.3, 1.0, 2.0])),
            top_k=int(draw.choice([0, 1, 5, 50, 1000])),
            top_p=float(draw.choice([1.0, 0.9, 0.5, 0.01])),
            min_p=float(draw.choice([0.0, 0.05, 0.5])),
            repetition_penalty=float(draw.choice([1.0, 1.3])),
            presence_penalty=float(draw.choice([0.0, 0.5])),
            frequency_penalty=float(draw.choice([0.0, 0.2])),
            seed=int(draw.integers(2**63)),
            choice_index=case % 3,
            prompt_index=case % 5,
        )
        history = [int(t) for t in draw.integers(-vocab, vocab, 30)] if params.uses_history else []
        mask, biases = None, {}
        if case % 4 == 0:
            mask = draw.integers(0, 2**32, -(-vocab // 32), np.uint32)
        if case % 3 == 0:
            chosen = draw.permutation(vocab)[:40].tolist()
            biases = {token: float(draw.choice([-np.inf, -100, -1.5, 0.7, 3])) for token in chosen}
        position = int(draw.integers(16, 90))
        rows = Rows(
            TOKENS[position : position + 1],
            blocks_for(91),
            position,
            kind=Yield.TOKEN,
            sampling=params,
            history=history,
            biases=biases,
        )
        masks = None if mask is None else TokenMasks(np.array([1], np.int32), np.stack([~mask, mask]))
        found = step(backend, rows, token_masks=masks).tokens[0]
        record = params.record()
        record["position"] = position
        expected = sample(
            logits[position],
            record[0],
            np.array(history, np.int32),
            mask,
            (np.array([*biases], np.int32), np.array([*biases.values()], np.float32)),
        )
        assert found == expected, params


def test_log_probabilities_are_of_the_unmodified_distribution(backend):
    logits = step(backend, Rows(TOKENS, blocks_for(90))).logits
    sampling = SamplingParams(temperature=0, repetition_penalty=5.0)
    rows = Rows(TOKENS, blocks_for(90), kind=Yield.TOKEN, sampling=sampling, top_logprobs=4, history=TOKENS)
    result = step(backend, rows)
    assert result.logprobs is not None
    for row, (token, top) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
        expected = log_softmax(logits[row])
        assert math.isclose(top.chosen, expected[token], abs_tol=1e-5)
        assert top.token_ids.tolist() == np.argsort(-logits[row], kind="stable")[:4].tolist()
        assert np.allclose(top.logprobs, expected[top.token_ids], atol=1e-5)


def test_a_row_scores_the_token_it_is_given(backend):
    logits = step(backend, Rows(TOKENS, blocks_for(90))).logits
    rows = Rows(TOKENS[:-1], blocks_for(90), kind=Yield.SCORE, top_logprobs=2, scored=TOKENS[1:])
    result = step(backend, rows)
    assert result.logprobs is not None and (result.tokens == -1).all()
    for row, (token, top) in enumerate(zip(TOKENS[1:], result.logprobs, strict=True)):
        expected = log_softmax(logits[row])
        assert math.isclose(top.chosen, expected[token], abs_tol=1e-5)
        assert top.token_ids.tolist() == np.argsort(-logits[row], kind="stable")[:2].tolist()


def test_masks_may_be_filled_in_while_the_step_computes(backend):
    """The sampler waits for them, on whichever thread it runs."""
    vocab = backend.vocab_size
    wanted = list(range(7, 7 + 12))
    masks = TokenMasks(np.arange(12, dtype=np.int32), np.zeros((12, -(-vocab // 32)), np.uint32))
    batch = [Rows([token], [token % 12], kind=Yield.TOKEN) for token in range(12)]
    ticket = backend.submit(step_plan(*batch, token_masks=masks))
    time.sleep(0.01)
    for bits, token in zip(masks.bits, wanted, strict=True):
        bits[token // 32] = 1 << token % 32
    assert backend.collect(ticket).tokens.tolist() == wanted


def test_masks_that_do_not_fit_are_refused_and_the_next_step_runs(backend):
    masks = TokenMasks(np.zeros(1, np.int32), np.zeros((1, 1), np.uint32))
    with pytest.raises(ValueError, match="token_masks"):
        backend.collect(backend.submit(step_plan(Rows([1], [0], kind=Yield.TOKEN), token_masks=masks)))


def test_a_copied_block_holds_what_its_source_held(backend):
    plain = step(backend, Rows(TOKENS[:40], blocks_for(40))).logits
    copy = BlockCopy(0, source=1, target=9, tokens=8)
    found = step(backend, Rows(TOKENS[24:40], [0, 9, 10], 24), copies=[copy]).logits
    assert np.array_equal(found, plain[24:])


def test_hidden_states_are_those_of_the_reference(backend, synthetic_model):
    reference = ReferenceBackend(GgufFile(synthetic_model), cache_dtype="f16")
    reference.allocate_cache([64])
    rows = Rows(TOKENS, blocks_for(90), kind=Yield.HIDDEN)
    found, expected = step(backend, rows).hidden, step(reference, rows).hidden
    assert np.abs(found - expected).mean() < 0.05 * np.abs(expected).mean()


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (Rows([400], [0]), "tokens"),
        (Rows([-1], [0]), "tokens"),
        (Rows([1], [64]), "block_tables"),
        (Rows([1], [0], 16), "block_tables"),
        (Rows([1] * 513, blocks_for(513)), "tokens"),
    ],
)
def test_a_plan_that_reaches_out_of_bounds_is_refused(backend, rows, named):
    with pytest.raises(ValueError, match=named):
        step(backend, rows)


def test_an_unknown_instruction_set_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("HEADRACE_ISA", "mmx")
    with pytest.raises(ConfigError, match=r"HEADRACE_ISA: 'mmx'.*portable"):
        choose_isa()
    monkeypatch.setenv("HEADRACE_ISA", "portable")
    assert choose_isa()[0] == "portable"


def test_an_architecture_that_is_not_known_is_refused_by_name(model_path):
    with (
        GgufFile(model_path("gemma-3-270m")) as weights,
        pytest.raises(ModelFileError, match=r"general.architecture: 'gemma3'"),
    ):
        CpuBackend(weights, threads=1)


def test_a_thread_writes_and_reads_a_block_while_a_step_computes_on_others(backend):
    table = blocks_for(90)
    alone = step(backend, Rows(TOKENS, table)).logits
    view = backend.block_view(0, 63)
    written = np.random.default_rng(5).bytes(len(view))
    done = Event()
    intact: list[bool] = []

    def move() -> None:
        while not done.is_set():
            view[:] = bytes(len(view))
            view[:] = written
            intact.append(bytes(view) == written)

    thread = Thread(target=move)
    thread.start()
    try:
        for _ in range(3):
            assert np.array_equal(step(backend, Rows(TOKENS, table)).logits, alone)
    finally:
        done.set()
        thread.join()
    assert intact and all(intact)


def test_a_view_of_a_block_outlives_its_backend(synthetic_model):
    backend = CpuBackend(GgufFile(synthetic_model), threads=1)
    backend.allocate_cache([2])
    view = backend.block_view(0, 1)
    backend.close()
    view[-1] = 255
    assert view[-1] == 255
