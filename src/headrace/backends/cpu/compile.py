"""Compiles a graph into a native plan: ops fused, values placed in as few buffers as their lifetimes allow.

Fused are: a norm with the quantisation of its rows; the products that read the same rows; a product with
the addition that takes it in; rope with the cache write; the two products of a gated network with their
activation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from headrace import _native
from headrace.backends.cpu.packed_cache import PackedCache
from headrace.backends.cpu.packing import PackedWeights, lay_out, pack_privately
from headrace.errors import ConfigError, ModelFileError
from headrace.models.config import ModelConfig
from headrace.models.graph import Add, Attention, Embed, Graph, Linear, Op, RmsNorm, Rope, SwiGlu, Value
from headrace.models.quants import dequantize
from headrace.models.weights import TensorType, Weights

_FLOATS = {TensorType.F32, TensorType.F16, TensorType.BF16}


def compile_plan(
    graph: Graph,
    config: ModelConfig,
    weights: Weights,
    *,
    isa: str,
    threads: int,
    max_rows: int,
    int8_cache: bool,
    packed_cache: PackedCache | None = None,
) -> tuple[_native.Model, PackedWeights]:
    """A plan that is ready but for its cache, and the weights that it reads.

    The graph's tensors have been checked against `config`.
    Raises ModelFileError for a model that is not supported, ConfigError where there are no such threads.
    """
    if config.head_dim % 32:
        raise ModelFileError(
            f"{config.architecture}.attention.key_length: heads of {config.head_dim} are not supported, "
            "only multiples of 32"
        )
    try:
        model = _native.Model(isa, threads, max_rows)
    except RuntimeError as error:  # std::system_error
        raise ConfigError(f"threads: the system does not give {threads} ({error}); ask for fewer") from None
    matrices = lay_out(weights, (op.weight for op in graph.ops if isinstance(op, Linear)))
    if packed_cache is None:
        packed = pack_privately(matrices, weights, threads)
    else:
        packed = packed_cache.get(matrices, weights, threads)
    model.use_weights(packed.memory)
    compiler = _Compiler(graph, config, weights, model, packed.offsets, int8_cache)
    compiler.compile()
    return model, packed


def _inputs(op: Op) -> tuple[Value, ...]:
    match op:
        case Embed():
            return ()
        case RmsNorm() | Linear() | Rope():
            return (op.x,)
        case Attention():
            return (op.query, op.key, op.value)
        case SwiGlu():
            return (op.gate, op.up)
        case Add():
            return (op.a, op.b)


class _Compiler:
    def __init__(
        self,
        graph: Graph,
        config: ModelConfig,
        weights: Weights,
        model: _native.Model,
        offsets: dict[str, int],
        int8_cache: bool,
    ) -> None:
        self.offsets, self.int8_cache = offsets, int8_cache
        self.graph, self.config, self.weights, self.model = graph, config, weights, model
        self.producer = {op.out: op for op in graph.ops}
        self.readers: defaultdict[Value, list[Op]] = defaultdict(list)
        for op in graph.ops:
            for value in _inputs(op):
                self.readers[value].append(op)
        self.done: set[Value] = set()
        self.place: dict[Value, int] = {}
        self.kind: dict[Value, str] = {}
        self.free: defaultdict[str, list[int]] = defaultdict(list)
        self.width: dict[Value, int] = {}

    def compile(self) -> None:
        for op in self.graph.ops:
            if op.out not in self.done:
                self._emit(op)

    def _emit(self, op: Op) -> None:
        match op:
            case Embed():
                table = self.weights.tensor(op.weight)
                vocab, width = table.shape
                self.model.embed(table.type, vocab, width, table.data, self._buffer(op.out, width))
            case RmsNorm() if op.out == self.graph.hidden:
                self._head(op)
            case RmsNorm():
                width = self.width[op.x]
                out = self._activations(op.out, width)
                self.model.norm(self.place[op.x], self._vector(op.weight), op.eps, width, out)
            case Linear():
                self._linears(op.x)
            case Rope():
                self._move(op.x, op.out)  # rotated in place, by the attention that reads it
                return
            case Attention():
                self._attention(op)
            case SwiGlu() | Add():
                raise AssertionError(f"{type(op).__name__} was not fused into the products that feed it")
        self._finish(op)

    def _finish(self, op: Op) -> None:
        """The op is emitted: values that nobody else will read give their place back."""
        self.done.add(op.out)
        for value in set(_inputs(op)):
            if value in self.place and all(reader.out in self.done for reader in self.readers[value]):
                self.free[self.kind[value]].append(self.place.pop(value))

    def _take(self, value: Value, width: int, kind: str, new: Callable[[], int]) -> int:
        place = self.free[kind].pop() if self.free[kind] else new()
        self.place[value], self.kind[value], self.width[value] = place, kind, width
        return place

    def _buffer(self, value: Value, width: int) -> int:
        return self._take(value, width, f"buffer {width}", lambda: self.model.add_buffer(width))

    def _activations(self, value: Value, width: int) -> int:
        """Rows ready for products; unquantised as well where a float matrix reads them."""
        products = [op for op in self.readers[value] if isinstance(op, Linear)]
        floats = any(self.weights.tensor(op.weight).type in _FLOATS for op in products)
        kind = f"activations {width} {floats}"
        return self._take(value, width, kind, lambda: self.model.add_activations(width, floats))

    def _move(self, source: Value, target: Value) -> None:
        self.place[target], self.kind[target] = self.place.pop(source), self.kind[source]
        self.width[target] = self.width[source]
        self.done.add(target)

    def _matrix(self, name: str) -> int:
        tensor = self.weights.tensor(name)
        rows, columns = tensor.shape
        return self.model.add_matrix(tensor.type, rows, columns, self.offsets[name])

    def _vector(self, name: str | None) -> int:
        if name is None:
            return -1
        return self.model.add_vector(np.ascontiguousarray(dequantize(self.weights.tensor(name)).reshape(-1)))

    def _linears(self, x: Value) -> None:
        """All products that read x, at once."""
        linears = [op for op in self.readers[x] if isinstance(op, Linear)]
        gated = self.readers[linears[0].out]
        if len(gated) == 1 and isinstance(gated[0], SwiGlu):
            self._gated(x, gated[0], linears)
            return
        products = []
        for op in linears:
            readers = self.readers[op.out]
            add = readers[0] if len(readers) == 1 and isinstance(readers[0], Add) else None
            width = self.weights.tensor(op.weight).shape[0]
            if add is None:
                out = self._buffer(op.out, width)
            else:
                self._move(add.a if add.b == op.out else add.b, add.out)
                out = self.place[add.out]
            products.append((self._matrix(op.weight), self._vector(op.bias), out, add is not None))
        self.model.linear(self.place[x], products)
        self.done.update(op.out for op in linears)

    def _gated(self, x: Value, swiglu: SwiGlu, linears: list[Linear]) -> None:
        products = {op.out: op for op in linears}
        gate, up = products[swiglu.gate], products[swiglu.up]
        out = self._activations(swiglu.out, self.weights.tensor(gate.weight).shape[0])
        self.model.swiglu(self.place[x], self._matrix(gate.weight), self._matrix(up.weight), out)
        self.done.update((gate.out, up.out, swiglu.out))

    def _attention(self, op: Attention) -> None:
        rope = self.producer[op.query]
        assert isinstance(rope, Rope)
        out = self._activations(op.out, op.heads * op.head_dim)
        self.model.attention(
            self.place[op.query],
            self.place[op.key],
            self.place[op.value],
            op.heads,
            op.kv_heads,
            op.head_dim,
            op.layer,
            rope.dims,
            rope.base,
            rope.scale,
            rope.pairing == "halves",
            self._vector(rope.factors),
            op.scale,
            self._key_factors(op) if self.int8_cache else -1,
            out,
        )

    def _key_factors(self, op: Attention) -> int:
        """Powers of two near the magnitudes of a key's elements, equal for elements that rotate together.

        Some models have keys whose biases dwarf all else; rounded to int8 as they are, little is left of the
        other elements. Magnitudes are estimated from the weights: a normed input has unit variance.
        """
        rope = self.producer[op.key]
        assert isinstance(rope, Rope)
        linear = self.producer[rope.x]
        assert isinstance(linear, Linear)
        norm = self.producer[linear.x]
        matrix = dequantize(self.weights.tensor(linear.weight))
        if isinstance(norm, RmsNorm):
            matrix = matrix * dequantize(self.weights.tensor(norm.weight))
        size = 3 * np.sqrt((matrix**2).sum(axis=1))
        if linear.bias is not None:
            size += np.abs(dequantize(self.weights.tensor(linear.bias)))
        size = size.reshape(op.kv_heads, op.head_dim)
        rotated = size[:, : rope.dims]
        shape = (op.kv_heads, 2, -1) if rope.pairing == "halves" else (op.kv_heads, -1, 2)
        pairs = rotated.reshape(shape)
        rotated[:] = np.broadcast_to(pairs.max(axis=shape.index(2), keepdims=True), pairs.shape).reshape(
            rotated.shape
        )
        factors = np.exp2(np.round(np.log2(np.maximum(size, 2.0**-20))))
        return self.model.add_vector(factors.astype(np.float32).reshape(-1))

    def _head(self, norm: RmsNorm) -> None:
        (linear,) = (op for op in self.readers[norm.out] if isinstance(op, Linear))
        width = self.width[norm.x]
        self.model.head(
            self.place[norm.x],
            self._vector(norm.weight),
            norm.eps,
            width,
            self._matrix(linear.weight),
            self.config.vocab_size,
        )
        self.done.add(linear.out)
