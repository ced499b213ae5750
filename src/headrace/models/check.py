"""Checks a model file's tensors against the graph that reads them, so that no backend reads out of bounds."""

from __future__ import annotations

from headrace.errors import ModelFileError
from headrace.models.config import ModelConfig
from headrace.models.graph import Add, Attention, Embed, Graph, Linear, Op, RmsNorm, Rope, SwiGlu, Value
from headrace.models.weights import TensorType, Weights

_VECTOR_TYPES = (TensorType.F32, TensorType.F16, TensorType.BF16)


def check_tensors(graph: Graph, config: ModelConfig, weights: Weights) -> None:
    """Raises ModelFileError, naming the tensor, where one is missing, misshapen or of an unsupported type.

    Only tensors that ops read are checked. Matrices may be of any type; norms, biases and rope factors are
    floats.
    """
    widths = _widths(graph, config)
    for op in graph.ops:
        match op:
            case Embed():
                _check(weights, op.weight, (config.vocab_size, widths[op.out]))
            case RmsNorm():
                _check(weights, op.weight, (widths[op.x],))
            case Linear():
                _check(weights, op.weight, (widths[op.out], widths[op.x]))
                if op.bias is not None:
                    _check(weights, op.bias, (widths[op.out],))
            case Rope(factors=str(factors)):
                _check(weights, factors, (op.dims // 2,))
            case _:
                pass


def _check(weights: Weights, name: str, expected: tuple[int, ...]) -> None:
    if name not in weights:
        raise ModelFileError(f"tensor {name}: missing, expected one of shape {list(expected)}")
    tensor = weights.tensor(name)
    if tensor.shape != expected:
        raise ModelFileError(f"tensor {name}: expected shape {list(expected)}, found {list(tensor.shape)}")
    if len(expected) == 1 and tensor.type not in _VECTOR_TYPES:
        allowed = ", ".join(allowed.name for allowed in _VECTOR_TYPES)
        raise ModelFileError(f"tensor {name}: type {tensor.type.name} is not supported here ({allowed} are)")


def _widths(graph: Graph, config: ModelConfig) -> dict[Value, int]:
    """The width of every value. A linear op's output has the width that the op which reads it asks for."""
    widths = {graph.hidden: config.embedding, graph.logits: config.vocab_size}
    for op in (*graph.ops, *reversed(graph.ops)):
        for values, width in _demands(op, config):
            known = {widths[value] for value in values if value in widths}
            if width is not None:
                known.add(width)
            assert len(known) <= 1, f"{op} joins values of different widths"
            for settled in known:
                widths.update(dict.fromkeys(values, settled))
    return widths


def _demands(op: Op, config: ModelConfig) -> list[tuple[tuple[Value, ...], int | None]]:
    """Which values of an op are equally wide, and how wide where the op says."""
    match op:
        case Embed():
            return [((op.out,), config.embedding)]
        case RmsNorm():
            return [((op.x, op.out), None)]
        case Linear():
            return []
        case Rope():
            return [((op.x, op.out), op.heads * op.head_dim)]
        case Attention():
            shared = op.kv_heads * op.head_dim
            return [((op.query, op.out), op.heads * op.head_dim), ((op.key, op.value), shared)]
        case SwiGlu():
            return [((op.gate, op.up, op.out), config.feed_forward)]
        case Add():
            return [((op.a, op.b, op.out), None)]
