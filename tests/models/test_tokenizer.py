"""Text becomes the tokens of the reference, comes back byte for byte, and never becomes control tokens."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ModelFileError, RequestError
from headrace.models.control_tokens import MarkedText
from headrace.models.gguf import GgufFile
from headrace.models.tokenizer import Tokenizer
from headrace.models.vocabulary import BYTE_CHARACTERS
from small_vocabulary import CONTROLS, FIRST_BYTE, MERGES, TOOL_CALL, UNUSED, small_metadata

GOLDEN = [
    ("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1"),
    ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m"),
]
SMALL = {pre: Tokenizer.from_metadata(small_metadata(pre)) for pre in ("smollm", "qwen2")}
ANY_TEXT = st.text() | st.lists(
    st.sampled_from([*CONTROLS, "<tool_call>", "hello", " ", "\r\n", "'s", "1"])
).map("".join)


@pytest.mark.parametrize(("model", "name"), GOLDEN)
def test_golden_passages_give_the_reference_tokens_and_come_back(model, name, model_path, golden):
    passages = golden(name)["passages"]
    tokenizer = Tokenizer.from_metadata(GgufFile(model_path(model)).metadata)
    for passage in passages:
        expected = passage["token_ids"]
        ids = tokenizer.encode(passage["text"])
        assert ids[: len(expected)] == expected
        assert tokenizer.decode(ids) == passage["text"]


def test_every_character_of_unicode_comes_back_from_a_real_vocabulary(model_path):
    tokenizer = Tokenizer.from_metadata(GgufFile(model_path("qwen2.5-coder-0.5b")).metadata)
    for first in range(0, sys.maxunicode + 1, 4096):
        text = "".join(chr(c) for c in range(first, first + 4096) if not 0xD800 <= c < 0xE000)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_characters_without_bytes_in_the_vocabulary_become_replacement_characters(model_path):
    tokenizer = Tokenizer.from_metadata(GgufFile(model_path("smollm2-135m")).metadata)
    assert (
        tokenizer.decode(tokenizer.encode("a\x04\x06b\U00040000c\U000f0000é\n"))
        == "a\ufffdb\ufffdc\U000f0000é\n"
    )


@pytest.mark.parametrize("tokenizer", SMALL.values(), ids=SMALL.keys())
@given(text=ANY_TEXT)
def test_any_text_comes_back_and_holds_no_control_token(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(CONTROLS.values())
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.fewest_tokens(text) <= len(ids)


def test_the_fewest_tokens_of_a_text_follow_from_its_bytes_and_the_longest_token():
    tokenizer = SMALL["qwen2"]
    assert tokenizer.fewest_tokens("") == 0
    assert tokenizer.fewest_tokens("é" * 1300) == 200  # "<|endoftext|>" has 13 bytes
    assert tokenizer.fewest_tokens(MarkedText("aMb" * 1300, "M")) == 200


def test_characters_that_are_replaced_count_as_what_replaces_them(model_path):
    tokenizer = Tokenizer.from_metadata(GgufFile(model_path("smollm2-135m")).metadata)
    assert tokenizer.fewest_tokens("\x04" * 10_000) <= len(tokenizer.encode("\x04" * 10_000)) < 5


class TestEncoding:
    tokenizer = SMALL["qwen2"]

    def test_merges_apply_in_their_order(self):
        first_merge = FIRST_BYTE + 256
        hello, world_start = first_merge + MERGES.index("hell o"), first_merge + MERGES.index("Ġw o")
        assert self.tokenizer.encode("hello wo") == [hello, world_start]

    def test_a_user_defined_token_is_found_in_any_text(self):
        assert self.tokenizer.encode("<tool_call>") == [TOOL_CALL]
        assert self.tokenizer.encode("a<tool_call>")[-1] == TOOL_CALL

    @pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "<tool_call>\udc00"])
    def test_surrogates_are_refused(self, text):
        with pytest.raises(RequestError, match="surrogate at position"):
            self.tokenizer.encode(text)

    def test_digits_stand_alone(self):
        assert len(self.tokenizer.encode("123")) == 3

    def test_the_bos_token_comes_first_where_the_model_asks(self):
        metadata = {**small_metadata(), "tokenizer.ggml.add_bos_token": True}
        tokenizer = Tokenizer.from_metadata(metadata)
        assert tokenizer.encode("he")[0] == tokenizer.bos_id
        assert (
            tokenizer.encode("he", add_bos=False) == self.tokenizer.encode("he") == tokenizer.encode("he")[1:]
        )


class TestDecoding:
    tokenizer = SMALL["qwen2"]

    def test_control_and_unused_tokens_are_left_out_or_shown(self):
        ids = [CONTROLS["<|im_start|>"], *self.tokenizer.encode("hi"), UNUSED]
        assert self.tokenizer.decode(ids) == "hi"
        assert self.tokenizer.decode(ids, skip_special=False) == "<|im_start|>hi[unused]"

    def test_each_byte_has_its_token(self):
        assert [self.tokenizer.token_bytes(FIRST_BYTE + byte) for byte in range(256)] == [
            bytes([byte]) for byte in range(256)
        ]

    def test_a_part_of_a_character_becomes_a_replacement_character(self):
        assert self.tokenizer.decode([FIRST_BYTE + 0xC3]) == "\ufffd"

    @pytest.mark.parametrize("token", [-1, 10**6])
    def test_ids_outside_the_vocabulary_are_refused(self, token):
        with pytest.raises(RequestError, match="outside the vocabulary"):
            self.tokenizer.decode([token])


class TestEndings:
    def test_eos_and_known_endings_stop_generation(self):
        assert SMALL["qwen2"].eos_ids == {CONTROLS["<|im_end|>"], CONTROLS["<|endoftext|>"]}

    def test_named_endings_do_too_and_are_control_tokens_whatever_their_type(self):
        tokenizer = Tokenizer.from_metadata({**small_metadata(), "tokenizer.ggml.eot_token_id": TOOL_CALL})
        assert TOOL_CALL in tokenizer.eos_ids
        assert TOOL_CALL not in tokenizer.encode("<tool_call>")


def _tokens(**changes):
    tokens = list(small_metadata()["tokenizer.ggml.tokens"])
    for index, token in changes.items():
        tokens[int(index[1:])] = token
    return tokens


BROKEN = [
    ("tokenizer.ggml.model", "llama"),
    ("tokenizer.ggml.model", None),
    ("tokenizer.ggml.pre", "unheard-of"),
    ("tokenizer.ggml.tokens", None),
    ("tokenizer.ggml.tokens", 7),
    ("tokenizer.ggml.tokens", _tokens(_9="☃ is not byte-level")),
    ("tokenizer.ggml.tokens", _tokens(_9=BYTE_CHARACTERS[5])),
    ("tokenizer.ggml.tokens", _tokens(_1="x" * 1000)),
    ("tokenizer.ggml.tokens", _tokens(**{f"_{FIRST_BYTE + 0x90}": "ĀĀĀ"})),
    ("tokenizer.ggml.token_type", None),
    ("tokenizer.ggml.token_type", [1, 2]),
    ("tokenizer.ggml.token_type", np.full(len(_tokens()), 9)),
    ("tokenizer.ggml.merges", None),
    ("tokenizer.ggml.merges", ["h e", "q q"]),
    ("tokenizer.ggml.merges", ["he"]),
    ("tokenizer.ggml.merges", ["< | im"]),
    ("tokenizer.ggml.bos_token_id", 10**6),
    ("tokenizer.ggml.eos_token_id", -1),
    ("tokenizer.ggml.eos_token_id", "2"),
    ("tokenizer.ggml.add_bos_token", 1),
]


@pytest.mark.parametrize(("key", "value"), BROKEN, ids=lambda part: str(part)[:40])
def test_what_is_broken_or_unsupported_is_refused_by_its_key(key, value):
    with pytest.raises(ModelFileError, match=key):
        Tokenizer.from_metadata({**small_metadata(), key: value})


def test_no_merge_can_make_a_control_token():
    metadata = small_metadata()
    metadata["tokenizer.ggml.tokens"] = _tokens(_2="hello<|")
    metadata["tokenizer.ggml.merges"] = [*MERGES, "hello <|"]
    with pytest.raises(ModelFileError, match=r"tokenizer.ggml.merges.*hello<\|"):
        Tokenizer.from_metadata(metadata)
