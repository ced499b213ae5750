"""A byte-level vocabulary small enough to write down: every byte, some merges, control and other tokens."""

from __future__ import annotations

from headrace.models.vocabulary import BYTE_CHARACTERS, TokenType

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "i m", "< |", "| >", "e n", "en d", "Ã ©"]
CONTROLS = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
TOOL_CALL = 3
UNUSED = 4
FIRST_BYTE = 5


def small_metadata(pre: str = "qwen2") -> dict[str, object]:
    """The metadata of a GGUF file with this vocabulary."""
    special = [*CONTROLS, "<tool_call>", "[unused]"]
    tokens = [*special, *BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in MERGES)]
    kinds = [TokenType.CONTROL] * 3 + [TokenType.USER_DEFINED, TokenType.UNUSED]
    kinds += [TokenType.NORMAL] * (len(tokens) - len(kinds))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": CONTROLS["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": CONTROLS["<|im_end|>"],
    }
