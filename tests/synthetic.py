"""Writes a small random model that is a valid GGUF file: real in every format, and quick to run.

The official `gguf` package writes it, so that the reader under test is not its own judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from headrace.models.weights import TensorType

EMBEDDING, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 256, 4, 2, 64, 512  # multiples of a K-quant's 256 values
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [
    *(
        "h e",
        "i n",
        "r e",
        "o n",
        "a t",
        "e r",
        "o r",
        "e n",
        "i s",
        "a n",
        "e s",
        "i t",
        "o u",
        "a l",
        "a r",
    ),
    *("i c", "l e", "v e", "l l", "l o", "e d", "o f", "a s", "n d", "l d", "i on", "in g", "an d", "t ion"),
    *("Ġ t", "Ġ a", "Ġ w", "Ġ s", "Ġ o", "Ġ f", "Ġ b", "Ġ c", "Ġ m", "Ġ p", "Ġ d", "Ġt he", "Ġa nd", "Ġo f"),
    *("Ġ in", "Ġt o", "Ġ is", "Ġt h", "Ġth at", "Ġf or", "Ġw as", "Ġc an", "Ġ re", "l lo", "he l"),
    *("hel lo", "w or", "wor ld", "Ġw or", "Ġwor ld", "Ċ Ċ", "Ġ Ġ"),
]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

DEFAULT_TYPES = (  # dealt out over the matrices of the layers in turn: seven a layer, so two layers hold all
    TensorType.Q4_1,
    TensorType.Q8_0,
    TensorType.Q5_0,
    TensorType.Q4_K,
    TensorType.Q6_K,
    TensorType.Q4_0,
    TensorType.Q5_1,
    TensorType.Q5_K,
    TensorType.F16,
    TensorType.BF16,
    TensorType.F32,
)
HALVES = {  # of a K-quant block: where it keeps its scale, and where the scale of its minimums
    TensorType.Q4_K: (0, 2),
    TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208, None),
}
MEAN_QUANT = {TensorType.Q4_K: 7.5, TensorType.Q5_K: 15.5}


def write_synthetic(
    path: Path,
    *,
    architecture: str = "llama",
    types: TensorType | Mapping[str, TensorType] | None = None,
    layers: int = 2,
    tied: bool = True,
    context: int = 2048,
    sampling: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Path:
    """Writes the model to `path` and returns it; equal arguments give equal bytes.

    `architecture` is "llama" or "qwen2" (with biases). `types` is the format of every matrix, or of those
    that a mapping names in full ("blk.0.ffn_up") or by suffix ("ffn_up", "token_embd", "output"); the other
    matrices of the layers take DEFAULT_TYPES in turn, the embedding and the output Q8_0. Norms and biases
    are F32. `sampling` is what the file recommends: the ends of keys "general.sampling.…".
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    vocabulary = write_tokenizer(writer, "smollm" if architecture == "llama" else "qwen2")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(EMBEDDING)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    for name, value in (sampling or {}).items():
        add = writer.add_int32 if isinstance(value, int) else writer.add_float32
        add(f"general.sampling.{name}", value)
    if architecture == "llama":
        writer.add_rope_dimension_count(HEAD_DIM)

    def matrix(name: str, rows: int, columns: int, default: TensorType) -> None:
        kind = types if isinstance(types, TensorType) else default
        if isinstance(types, Mapping):
            kind = types.get(name, types.get(name.split(".")[-1], default))
        data = random_matrix(kind, rows, columns, rng)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=GGMLQuantizationType(kind))

    def vector(name: str, size: int, mean: float) -> None:
        writer.add_tensor(name, rng.normal(mean, 0.1, size).astype(np.float32))

    attention, queries, keys = HEADS * HEAD_DIM, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    matrix("token_embd", vocabulary, EMBEDDING, TensorType.Q8_0)
    turn = 0
    for layer in range(layers):
        blk = f"blk.{layer}"
        vector(f"{blk}.attn_norm.weight", EMBEDDING, 1.0)
        vector(f"{blk}.ffn_norm.weight", EMBEDDING, 1.0)
        for name, rows, columns in (
            ("attn_q", queries, EMBEDDING),
            ("attn_k", keys, EMBEDDING),
            ("attn_v", keys, EMBEDDING),
            ("attn_output", EMBEDDING, attention),
            ("ffn_gate", FEED_FORWARD, EMBEDDING),
            ("ffn_up", FEED_FORWARD, EMBEDDING),
            ("ffn_down", EMBEDDING, FEED_FORWARD),
        ):
            matrix(f"{blk}.{name}", rows, columns, DEFAULT_TYPES[turn % len(DEFAULT_TYPES)])
            turn += 1
            if architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                vector(f"{blk}.{name}.bias", rows, 0.0)
    vector("output_norm.weight", EMBEDDING, 1.0)
    if not tied:
        matrix("output", vocabulary, EMBEDDING, TensorType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tokenizer(writer: gguf.GGUFWriter, pre_tokenizer: str) -> int:
    """A byte-level BPE vocabulary: 256 bytes, what the merges make, control tokens last. Returns its size."""
    tokens = list(dict.fromkeys([*byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]))
    normal = len(tokens)
    tokens += CONTROL_TOKENS
    end_of_text, _, end_of_turn = range(normal, len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * normal + [3] * len(CONTROL_TOKENS))  # 1 is a normal token, 3 a control token
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(end_of_text)
    writer.add_eos_token_id(end_of_turn)
    writer.add_pad_token_id(end_of_text)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def byte_alphabet() -> list[str]:
    """The character by which GPT-2 writes each byte; first those that print as themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]


def random_matrix(kind: TensorType, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """A matrix that keeps activations of order 1, in the given format (as bytes where it is packed)."""
    std = columns**-0.5
    if kind in HALVES:
        return random_k_blocks(kind, rows, columns, std, rng)
    values = rng.normal(0.0, std, (rows, columns)).astype(np.float32)
    return gguf.quants.quantize(values, GGMLQuantizationType(kind))


def random_k_blocks(
    kind: TensorType, rows: int, columns: int, std: float, rng: np.random.Generator
) -> np.ndarray:
    """Random packed bits, the scales chosen so that values have the given standard deviation and no mean.

    The official package cannot quantise to K-quants; it can dequantise, by which the scale is found.
    """
    values, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    blocks = rng.integers(0, 256, (rows * columns // values, size), dtype=np.uint8)
    scale_at, minimum_at = HALVES[kind]

    def set_scales(scales: np.ndarray) -> None:
        blocks[:, scale_at : scale_at + 2] = scales.astype("<f2").view(np.uint8)
        if minimum_at is not None:
            minimums = scales * MEAN_QUANT[kind]
            blocks[:, minimum_at : minimum_at + 2] = minimums.astype("<f2").view(np.uint8)

    set_scales(np.ones((len(blocks), 1)))
    unit = gguf.quants.dequantize(blocks, GGMLQuantizationType(kind)).std()
    set_scales(rng.uniform(0.5, 1.5, (len(blocks), 1)) * std / unit)
    return blocks.reshape(rows, -1)
