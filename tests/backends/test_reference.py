"""The reference backend against golden values, and what its steps must hold on a small synthetic model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.reference import ReferenceBackend, attention, rope
from headrace.backends.reference_sampler import largest, log_softmax
from headrace.backends.sampling import SamplingParams
from headrace.backends.step import BlockCopy, TokenMasks, Yield
from headrace.errors import ModelFileError
from headrace.models.gguf import GgufFile
from headrace.models.graph import Rope
from headrace.models.weights import Tensor, TensorType
from plans import Rows, blocks_for, step_plan, teacher_forced
from synthetic import write_synthetic

GOLDEN = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m",
}
POOL = 64
PROMPT = [int(token) for token in np.random.default_rng(1).integers(0, 250, 75)]


class Changed:
    """An open file with some of its tensors replaced, or gone where the replacement is None."""

    def __init__(self, weights: GgufFile, changes: Mapping[str, Tensor | None]) -> None:
        self._weights, self._changes = weights, changes
        self.metadata = weights.metadata

    def __contains__(self, name: str) -> bool:
        return name in self._weights and self._changes.get(name, name) is not None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._weights if name in self)

    def tensor(self, name: str) -> Tensor:
        return self._changes.get(name) or self._weights.tensor(name)

    def digest(self) -> str:
        return self._weights.digest()


@pytest.fixture(scope="module")
def make_backend(synthetic_model):
    weights = GgufFile(synthetic_model)

    def make(**options) -> ReferenceBackend:
        backend = ReferenceBackend(weights, **options)
        backend.allocate_cache([POOL])
        return backend

    return make


@pytest.fixture(scope="module")
def backend(make_backend):
    return make_backend()


@pytest.fixture(scope="module")
def expected(make_backend):
    """[len(PROMPT), vocab] logits of the prompt computed alone and at once."""
    return teacher_forced(make_backend(), PROMPT)


def run(backend, *batch, **options):
    return backend.collect(backend.submit(step_plan(*batch, **options)))


def close(logits, expected) -> bool:
    return np.allclose(logits, expected, rtol=1e-4, atol=1e-4)


def golden_backend(path, **options) -> ReferenceBackend:
    backend = ReferenceBackend(GgufFile(path), **options)
    backend.allocate_cache([10 * POOL])
    return backend


def differences(backend, passage, tokens: int | None = None) -> np.ndarray:
    """|change of the true next token's log-probability|; argmax must agree wherever it is not a near tie."""
    ids = passage["token_ids"][:tokens]
    logits = teacher_forced(backend, ids)
    clear = np.array(passage["gap"][: len(ids)]) > 0.01
    assert (logits.argmax(axis=1) == passage["argmax"][: len(ids)])[clear].all()
    found = [log_softmax(row)[target] for row, target in zip(logits, ids[1:], strict=False)]
    return np.abs(np.array(found) - passage["target_logprob"][: len(found)])


@pytest.mark.parametrize(
    "name", ["smollm2-135m", pytest.param("qwen2.5-coder-0.5b", marks=pytest.mark.oracle)]
)
def test_the_start_of_a_passage_has_the_golden_log_probabilities(name, golden, model_path):
    passage = golden(GOLDEN[name])["passages"][0]
    assert differences(golden_backend(model_path(name)), passage, tokens=160).mean() < 1e-4


@pytest.mark.oracle
@pytest.mark.parametrize("cache_dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", GOLDEN)
def test_all_passages_have_the_golden_log_probabilities(name, cache_dtype, golden, model_path):
    backend = golden_backend(model_path(name), cache_dtype=cache_dtype)
    changes = [differences(backend, passage) for passage in golden(GOLDEN[name])["passages"]]
    assert np.concatenate(changes).mean() < {"f32": 1e-4, "f16": 2e-3}[cache_dtype]


@pytest.mark.oracle
@pytest.mark.parametrize("name", GOLDEN)
def test_all_chats_continue_greedily_as_the_golden_ones(name, golden, model_path):
    backend = golden_backend(model_path(name), max_rows=2048)
    chats = golden(GOLDEN[name])["chats"]
    prompts = [chat["prompt_token_ids"] for chat in chats]
    outputs: list[list[int]] = [[] for _ in chats]
    tables = [blocks_for(512, first=32 * i) for i in range(len(chats))]
    steps = max(len(chat["greedy"]) for chat in chats)
    for step in range(steps):
        batch = [
            Rows(output[-1:] or prompt, table, len(prompt) + step - 1 if step else 0, Yield.TOKEN, "last")
            for prompt, output, table in zip(prompts, outputs, tables, strict=True)
        ]
        for output, token in zip(outputs, run(backend, *batch).tokens, strict=True):
            output.append(int(token))
    for chat, output in zip(chats, outputs, strict=True):
        ties = [i for i, gap in enumerate(chat["gap"]) if gap < 0.001]
        until = ties[0] if ties else len(chat["greedy"])
        assert output[:until] == chat["greedy"][:until], chat["prompt"]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tensor_type", TensorType)
def test_a_format_computes_what_its_officially_dequantised_values_do(tensor_type, architecture, tmp_path):
    path = write_synthetic(tmp_path / "m.gguf", architecture=architecture, types=tensor_type, tied=False)
    floats = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        floats[tensor.name] = Tensor(
            tensor.name, TensorType.F32, values.shape, values.reshape(-1).view(np.uint8)
        )
    assert len(floats) > 20
    packed, plain = ReferenceBackend(GgufFile(path)), ReferenceBackend(Changed(GgufFile(path), floats))
    packed.allocate_cache([2])
    plain.allocate_cache([2])
    logits = teacher_forced(packed, PROMPT[:20])
    assert np.array_equal(logits, teacher_forced(plain, PROMPT[:20]))
    assert logits.std() > 0.1


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_a_prompt_in_chunks_has_the_logits_of_the_whole(chunk, backend, expected):
    assert close(teacher_forced(backend, PROMPT, chunk=chunk), expected)


@settings(deadline=None, max_examples=20)
@given(pool=st.permutations(range(POOL)), chunk=st.integers(1, 80))
def test_logits_do_not_depend_on_which_blocks_hold_the_cache(pool, chunk, backend, expected):
    table = pool[: len(blocks_for(len(PROMPT)))]
    assert close(teacher_forced(backend, PROMPT, table=table, chunk=chunk), expected)


def test_strangers_in_the_batch_leave_a_sequence_alone(backend, expected):
    stranger = Rows(PROMPT[::-1][:33], blocks_for(33, first=20), kind=Yield.HIDDEN)
    first = run(backend, stranger, Rows(PROMPT[:40], blocks_for(75)), Rows(PROMPT[:5], [30])).logits
    single = Rows([9], [41, 20], 16, Yield.TOKEN)
    run(backend, Rows(PROMPT[:16], [41], yielding="none"))
    second = run(backend, single, Rows(PROMPT[40:], blocks_for(75), 40), stranger).logits
    assert close(np.concatenate([first[:40], second]), expected)
    assert close(first[40:], expected[:5])


def test_sequences_may_share_the_blocks_of_their_prefix(backend, expected):
    table = blocks_for(75)
    run(backend, Rows(PROMPT[:64], table, yielding="none"))
    rest = [Rows(PROMPT[64:], [*table[:4], own], 64) for own in (50, 51)]
    assert close(run(backend, *rest).logits, np.tile(expected[64:], (2, 1)))


def test_a_sequence_may_read_a_block_that_another_one_fills_in_the_same_step(backend, expected):
    table = blocks_for(75)
    reader = Rows(PROMPT[64:], table, 64)
    assert close(run(backend, reader, Rows(PROMPT[:64], table)).logits[:11], expected[64:])


def test_a_wrong_block_table_shows(make_backend):
    backend = make_backend()
    teacher_forced(backend, PROMPT[:16])
    assert np.isnan(run(backend, Rows([1], [0, 1], 20)).logits).all(), "tokens 16 to 19 were never written"
    with pytest.raises(AssertionError, match="no such block"):
        run(backend, Rows([1], [0, POOL], 16))


@pytest.mark.parametrize("tokens", [0, 1, 11, 16])
def test_a_partial_copy_carries_the_first_tokens_of_a_block(tokens, make_backend, expected):
    backend = make_backend()
    run(backend, Rows(PROMPT[:32], [3, 5], yielding="none"))
    rest = Rows(PROMPT[16 + tokens :], [3, 7, *blocks_for(43, first=10)], 16 + tokens)
    logits = run(backend, rest, copies=[BlockCopy(0, source=5, target=7, tokens=tokens)]).logits
    assert close(logits, expected[16 + tokens :])


def test_copies_apply_in_their_order(make_backend, expected):
    backend = make_backend()
    run(backend, Rows(PROMPT[:16], [0], yielding="none"))
    copies = [BlockCopy(0, 0, 1, BLOCK_TOKENS), BlockCopy(0, 1, 2, BLOCK_TOKENS)]
    assert close(run(backend, Rows([PROMPT[16]], [2, 3], 16), copies=copies).logits, expected[16:17])


@pytest.mark.parametrize("cache_dtype", ["f16", "f32"])
def test_a_block_copied_through_its_view_serves_another_backend(cache_dtype, make_backend):
    source, target = make_backend(cache_dtype=cache_dtype), make_backend(cache_dtype=cache_dtype)
    wanted = teacher_forced(source, PROMPT)[64:]
    for i, block in enumerate(blocks_for(64)):
        view = source.block_view(0, block)
        assert len(view) == source.cache_spec.bytes_per_block()
        target.block_view(0, 40 + i)[:] = view
    assert close(run(target, Rows(PROMPT[64:], [40, 41, 42, 43, 9], 64)).logits, wanted)


def test_a_float16_cache_holds_rounded_keys_and_values(make_backend):
    half, single = make_backend(cache_dtype="f16"), make_backend(cache_dtype="f32")
    first_layer = []
    for backend, dtype in ((half, np.float16), (single, np.float32)):
        teacher_forced(backend, PROMPT[:16])
        first_layer.append(np.frombuffer(backend.block_view(0, 0), dtype).reshape(2, 2, -1)[:, 0])
    assert np.array_equal(first_layer[0], first_layer[1].astype(np.float16))


def test_the_step_that_writes_keys_and_values_reads_them_rounded(make_backend, expected):
    change = np.abs(teacher_forced(make_backend(cache_dtype="f16"), PROMPT) - expected).max(axis=1)
    assert change[0] > 1e-5, "the first token attends to itself alone"
    assert change.max() < 0.02


def test_rows_yield_what_they_are_asked_for(backend, expected):
    table = blocks_for(75)
    batch = [
        Rows(PROMPT[:20], table, 0, Yield.HIDDEN, "last"),
        Rows(PROMPT[:9], [60], 0, Yield.TOKEN, "last"),
        Rows(PROMPT[:30], [61, 62], 0, yielding="none"),
        Rows(PROMPT[:12], [63], 0, Yield.LOGITS, "all"),
    ]
    result = run(backend, *batch)
    assert result.tokens.tolist() == [-1, expected[8].argmax(), *[-1] * 12]
    assert close(result.logits, expected[:12])
    assert result.hidden.shape == (1, 256)
    assert result.logprobs is None


def test_a_step_in_which_no_row_yields_answers_nothing(backend):
    result = run(backend, Rows(PROMPT[:4], [0], yielding="none"))
    assert len(result.tokens) == 0
    assert (result.logits, result.hidden, result.logprobs) == (None, None, None)


def test_log_probabilities_are_of_the_unmodified_distribution(backend, expected):
    biased = SamplingParams(temperature=0, presence_penalty=100.0)
    best = int(expected[19].argmax())
    rows = Rows(PROMPT[:20], blocks_for(20), 0, Yield.TOKEN, "last", biased, 3, history=[-1 - best])
    silent = Rows(PROMPT[:20], [50, 51], 0, Yield.TOKEN, "last")
    result = run(backend, rows, silent)
    logprobs = log_softmax(expected[19])
    second = int(largest(expected[19], 2)[1])
    assert result.tokens.tolist() == [second, best]
    top, none = result.logprobs
    assert none is None
    assert top.chosen == pytest.approx(logprobs[second], abs=1e-4)
    assert top.token_ids.tolist() == largest(expected[19], 3).tolist()
    assert top.logprobs == pytest.approx(logprobs[top.token_ids], abs=1e-4)


def test_the_chosen_log_probability_alone_may_be_asked_for(backend):
    rows = Rows(PROMPT[:20], blocks_for(20), 0, Yield.TOKEN, "last", top_logprobs=0)
    (top,) = run(backend, rows).logprobs
    assert top.chosen < 0
    assert len(top.token_ids) == len(top.logprobs) == 0


def test_a_row_scores_the_token_it_is_given(backend, expected):
    rows = Rows(PROMPT[:20], blocks_for(20), 0, Yield.SCORE, top_logprobs=0, scored=PROMPT[1:21])
    result = run(backend, rows)
    assert (result.tokens == -1).all()
    for row, (token, top) in enumerate(zip(PROMPT[1:21], result.logprobs, strict=True)):
        assert top.chosen == pytest.approx(log_softmax(expected[row])[token], abs=1e-4)


def test_a_token_mask_holds_for_its_own_row_only(backend, expected):
    masks = TokenMasks(np.array([0, -1], np.int32), np.zeros((1, (backend.vocab_size + 31) // 32), np.uint32))
    masks.bits[0, 1] = 1 << 5
    batch = [Rows(PROMPT[:20], [2 * i, 2 * i + 1], 0, Yield.TOKEN, "last") for i in range(2)]
    assert run(backend, *batch, token_masks=masks).tokens.tolist() == [37, expected[19].argmax()]


def test_a_sampled_token_depends_on_its_position_and_seed_not_on_its_place_in_the_batch(backend):
    def draw(seed, place):
        rows = [Rows(PROMPT[:5], [i], 0, Yield.TOKEN, "last", SamplingParams(seed=i)) for i in range(place)]
        wanted = Rows(PROMPT[:20], [8, 9], 0, Yield.TOKEN, "last", SamplingParams(temperature=3, seed=seed))
        return int(run(backend, *rows, wanted).tokens[-1])

    assert len({draw(5, place) for place in range(5)}) == 1
    assert len({draw(seed, 0) for seed in range(8)}) > 1


def test_a_file_that_lacks_a_tensor_is_refused_before_anything_runs(synthetic_model):
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight"):
        ReferenceBackend(Changed(GgufFile(synthetic_model), {"blk.1.ffn_up.weight": None}))


def test_fingerprints_tell_cache_types_apart(make_backend):
    digests = {make_backend(cache_dtype=dtype).fingerprint.digest() for dtype in ("f16", "f32", "f32")}
    assert len(digests) == 2


@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
def test_rope_turns_a_query_key_product_into_one_of_their_distance(pairing):
    op = Rope(0, 2, 8, 6, 100.0, 0.5, pairing, None, 1)
    query, key = np.random.default_rng(0).normal(size=(2, 1, 16)).astype(np.float32)

    def product(i, j):
        at = [np.array([position], np.int32) for position in (i, j)]
        return float((rope(query, at[0], op, None) * rope(key, at[1], op, None)).sum())

    assert product(3, 1) == pytest.approx(product(1003, 1001), abs=1e-4)
    assert product(3, 1) != pytest.approx(product(4, 1), abs=1e-3)
    rotated = rope(query, np.array([7], np.int32), op, None).reshape(2, 8)
    assert np.array_equal(rotated[:, 6:], query.reshape(2, 8)[:, 6:]), "only the first dims rotate"
    angle = 7 * 0.5
    partner = 1 if pairing == "adjacent" else 3
    first = query[0, 0] * np.cos(angle) - query[0, partner] * np.sin(angle)
    assert rotated[0, 0] == pytest.approx(first, abs=1e-6)


def test_a_query_head_attends_with_its_shared_key_value_head_to_no_later_position():
    values = np.arange(12, dtype=np.float32).reshape(3, 2, 2)  # [context, kv_heads, size]
    out = attention(np.zeros((2, 4, 2), np.float32), values, values, np.array([0, 2], np.int32), 1.0)
    assert np.array_equal(out[0], values[0, [0, 0, 1, 1]])
    assert np.allclose(out[1], values.mean(axis=0)[[0, 0, 1, 1]])
