"""Turns a GGUF file into a bfloat16 checkpoint in the manner of Hugging Face, for peers that need one.

The safetensors format is the length of a JSON header as 8 bytes, the header, and the bytes of the tensors
(huggingface.co/docs/safetensors). Names and configuration are those of transformers' Llama and Qwen2 models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers.decoders import ByteLevel

from headrace.models.config import ModelConfig
from headrace.models.gguf import GgufFile
from headrace.models.quants import dequantize
from headrace.models.tokenizer import Tokenizer
from headrace.models.vocabulary import TOKENS_KEY, TokenType

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, folder: Path) -> Path:
    """Write config, tokenizer and tensors into the folder, unless they are there; the folder."""
    done = folder / "model.safetensors"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with GgufFile(gguf) as weights:
            tokenizer = Tokenizer.from_metadata(weights.metadata)
            _write_json(folder / "config.json", _config(weights, tokenizer))
            _write_tokenizer(folder, weights, tokenizer)
            partial = done.with_suffix(".partial")
            _write_tensors(partial, weights)
            partial.rename(done)
    return folder


def write_tokenizer(gguf: Path, folder: Path) -> Path:
    """Write only what transformers reads a tokenizer from into the folder; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with GgufFile(gguf) as weights:
        _write_tokenizer(folder, weights, Tokenizer.from_metadata(weights.metadata))
    return folder


def _config(weights: GgufFile, tokenizer: Tokenizer) -> dict[str, Any]:
    config = ModelConfig.from_weights(weights)
    return {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "hidden_size": config.embedding,
        "intermediate_size": config.feed_forward,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "vocab_size": tokenizer.vocab_size,
        "tie_word_embeddings": "output.weight" not in weights,
        "torch_dtype": "bfloat16",
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
    }


def _write_tokenizer(folder: Path, weights: GgufFile, tokenizer: Tokenizer) -> None:
    """The tokenizer as it splits and merges here, with every token under its id."""
    tokenizer._bpe.decoder = ByteLevel()
    content = json.loads(tokenizer._bpe.to_str())
    tokens = weights.metadata[TOKENS_KEY]
    assert isinstance(tokens, list)
    content["model"]["vocab"] = {token: number for number, token in enumerate(tokens)}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content["added_tokens"] = [
        {"id": number, "content": literal, **plain}
        for literal, number in sorted(tokenizer.of_type(TokenType.CONTROL).items(), key=lambda pair: pair[1])
    ]
    _write_json(folder / "tokenizer.json", content)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.literal(tokenizer.bos_id) or None,
        "eos_token": tokenizer.literal(tokenizer.eos_id),
        "chat_template": weights.metadata.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_tensors(path: Path, weights: GgufFile) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in _names(weights):
        shape = weights.tensor(name).shape
        end = at + 2 * int(np.prod(shape))
        header[_name(name)] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in _names(weights):
            file.write(_bfloat16(_values(weights, name)).tobytes())


def _names(weights: GgufFile) -> Iterator[str]:
    """The tensors that are parameters; a table of rope factors is none in the target."""
    return (name for name in weights if not name.startswith("rope_freqs"))


def _name(name: str) -> str:
    *layer, part, kind = name.split(".")
    if not layer:
        return f"{_TOP[part]}.{kind}"
    return f"model.layers.{layer[1]}.{_LAYER[part]}.{kind}"


def _values(weights: GgufFile, name: str) -> NDArray[np.float32]:
    """A tensor as transformers wants it: there the elements that rotate together lie half a head apart.

    GGUF files of the llama architecture have them side by side.
    """
    values = dequantize(weights.tensor(name))
    config = ModelConfig.from_weights(weights)
    if config.architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        pairs = values.reshape(-1, config.head_dim // 2, 2, values.shape[-1])
        values = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
    return values


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
