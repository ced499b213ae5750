"""Architectures as graphs, and the check of a file's tensors against them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.errors import ModelFileError
from headrace.models.architectures import ARCHITECTURES, build_graph
from headrace.models.check import check_tensors
from headrace.models.config import ModelConfig
from headrace.models.graph import Attention, Embed, Graph, Linear, RmsNorm, Rope
from headrace.models.weights import Tensor, TensorType

EMBEDDING, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 48, 80, 6, 2, 8, 2, 11
KV = KV_HEADS * HEAD_DIM


class InMemoryWeights:
    """Tensors of zeros, by name and shape."""

    def __init__(self, architecture: str, **overrides: object) -> None:
        keys = {
            "context_length": 64,
            "block_count": LAYERS,
            "embedding_length": EMBEDDING,
            "feed_forward_length": FEED_FORWARD,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.layer_norm_rms_epsilon": 1e-5,
        }
        self.metadata: dict[str, object] = {
            "general.architecture": architecture,
            "tokenizer.ggml.tokens": [str(i) for i in range(VOCAB)],
            **{f"{architecture}.{key}": value for key, value in (keys | overrides).items()},
        }
        self.tensors: dict[str, Tensor] = {}
        self.put("token_embd.weight", VOCAB, EMBEDDING)
        self.put("output_norm.weight", EMBEDDING)
        for layer in range(LAYERS):
            self._put_layer(f"blk.{layer}", biases=architecture == "qwen2")

    def _put_layer(self, block: str, biases: bool) -> None:
        for name, width in {"q": EMBEDDING, "k": KV, "v": KV}.items():
            self.put(f"{block}.attn_{name}.weight", width, EMBEDDING)
            if biases:
                self.put(f"{block}.attn_{name}.bias", width)
        self.put(f"{block}.attn_output.weight", EMBEDDING, EMBEDDING)
        self.put(f"{block}.attn_norm.weight", EMBEDDING)
        self.put(f"{block}.ffn_norm.weight", EMBEDDING)
        self.put(f"{block}.ffn_gate.weight", FEED_FORWARD, EMBEDDING)
        self.put(f"{block}.ffn_up.weight", FEED_FORWARD, EMBEDDING)
        self.put(f"{block}.ffn_down.weight", EMBEDDING, FEED_FORWARD)

    def put(self, name: str, *shape: int, type: TensorType = TensorType.F32) -> None:  # noqa: A002
        self.tensors[name] = Tensor(name, type, shape, np.zeros(4 * int(np.prod(shape)), np.uint8))

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def digest(self) -> str:
        return ""


def graph_of(weights: InMemoryWeights) -> Graph:
    return build_graph(ModelConfig.from_weights(weights), weights)


def check(weights: InMemoryWeights) -> None:
    config = ModelConfig.from_weights(weights)
    check_tensors(build_graph(config, weights), config, weights)


def names_read(graph: Graph) -> set[str]:
    names = set()
    for op in graph.ops:
        match op:
            case Embed() | RmsNorm():
                names.add(op.weight)
            case Linear():
                names.update({op.weight} if op.bias is None else {op.weight, op.bias})
            case Rope(factors=str(factors)):
                names.add(factors)
    return names


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_graph_reads_every_tensor_of_its_file(architecture):
    weights = InMemoryWeights(architecture)
    assert names_read(graph_of(weights)) == set(weights)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_layer_attends_once_through_its_own_cache_layer(architecture):
    attentions = [op for op in graph_of(InMemoryWeights(architecture)).ops if isinstance(op, Attention)]
    assert [op.layer for op in attentions] == list(range(LAYERS))
    assert {(op.heads, op.kv_heads, op.head_dim) for op in attentions} == {(HEADS, KV_HEADS, HEAD_DIM)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_op_reads_only_values_computed_before_it(architecture):
    graph = graph_of(InMemoryWeights(architecture))
    assert [op.out for op in graph.ops] == list(range(len(graph.ops)))
    for op in graph.ops:
        inputs = [getattr(op, name, -1) for name in ("x", "a", "b", "gate", "up", "query", "key", "value")]
        assert max(inputs) < op.out
    assert (graph.hidden, graph.logits) == (graph.ops[-2].out, graph.ops[-1].out)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_output_matrix_is_the_embedding_unless_the_file_has_its_own(architecture):
    weights = InMemoryWeights(architecture)
    assert graph_of(weights).ops[-1].weight == "token_embd.weight"
    weights.put("output.weight", VOCAB, EMBEDDING)
    assert graph_of(weights).ops[-1].weight == "output.weight"
    check(weights)


def test_llama_rotates_neighbours_and_qwen2_halves():
    for architecture, pairing in {"llama": "adjacent", "qwen2": "halves"}.items():
        ropes = [op for op in graph_of(InMemoryWeights(architecture)).ops if isinstance(op, Rope)]
        assert {op.pairing for op in ropes} == {pairing}
        assert len(ropes) == 2 * LAYERS


def test_llama_divides_rope_frequencies_by_the_factors_of_its_file():
    weights = InMemoryWeights("llama")
    weights.put("rope_freqs.weight", HEAD_DIM // 2)
    assert "rope_freqs.weight" in names_read(graph_of(weights))
    check(weights)
    weights.put("rope_freqs.weight", HEAD_DIM)
    with pytest.raises(ModelFileError, match=r"rope_freqs.weight: expected shape \[4\], found \[8\]"):
        check(weights)


def test_an_unknown_architecture_is_refused_by_name():
    weights = InMemoryWeights("llama")
    config = ModelConfig.from_weights(weights)
    object.__setattr__(config, "architecture", "mamba")
    with pytest.raises(ModelFileError, match="'mamba' is not supported"):
        build_graph(config, weights)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_complete_file_passes_the_check(architecture):
    check(InMemoryWeights(architecture))


@pytest.mark.parametrize("name", sorted(InMemoryWeights("qwen2")))
def test_a_missing_tensor_is_named(name):
    weights = InMemoryWeights("qwen2")
    shape = weights.tensors.pop(name).shape
    with pytest.raises(ModelFileError) as error:
        check(weights)
    assert str(error.value) == f"tensor {name}: missing, expected one of shape {list(shape)}"


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("name", sorted(InMemoryWeights("qwen2")))
def test_a_misshapen_tensor_is_named_with_both_shapes(name, change, axis):
    weights = InMemoryWeights("qwen2")
    expected = list(weights.tensor(name).shape)
    found = expected.copy()
    found[min(axis, len(found) - 1)] += change
    weights.put(name, *found)
    with pytest.raises(ModelFileError) as error:
        check(weights)
    assert str(error.value) == f"tensor {name}: expected shape {expected}, found {found}"


def test_a_tensor_with_too_many_dimensions_is_refused():
    weights = InMemoryWeights("llama")
    weights.put("blk.0.ffn_up.weight", 1, FEED_FORWARD, EMBEDDING)
    with pytest.raises(ModelFileError, match=r"blk.0.ffn_up.weight: expected shape \[80, 48\]"):
        check(weights)


def test_quantised_norms_and_biases_are_refused():
    weights = InMemoryWeights("qwen2")
    weights.put("blk.1.attn_q.bias", EMBEDDING, type=TensorType.Q8_0)
    with pytest.raises(ModelFileError, match=r"blk.1.attn_q.bias: type Q8_0 is not supported here"):
        check(weights)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.head_count", 5),
        ("attention.head_count_kv", 4),
        ("attention.value_length", 4),
        ("rope.dimension_count", 7),
        ("rope.dimension_count", 10),
        ("rope.scaling.type", "yarn"),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("block_count", 0),
        ("block_count", -1),
        ("block_count", "2"),
        ("block_count", True),
        ("feed_forward_length", 2**31),
        ("context_length", None),
    ],
)
def test_senseless_hyperparameters_are_refused_by_key(key, value):
    with pytest.raises(ModelFileError, match=r"llama\."):
        ModelConfig.from_weights(InMemoryWeights("llama", **{key: value}))


def test_a_linearly_scaled_rope_divides_positions_by_its_factor():
    weights = InMemoryWeights("llama", **{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    assert ModelConfig.from_weights(weights).rope_scale == 0.25
