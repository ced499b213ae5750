"""Streams deliver whole characters, all of the text, nothing of a stop string, however tokens cut it."""

from __future__ import annotations

import codecs
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RequestError
from headrace.models.tokenizer import Tokenizer
from headrace.worker.detokenizer import Detokenizer
from small_vocabulary import CONTROLS, FIRST_BYTE, small_metadata

TOKENIZER = Tokenizer.from_metadata(small_metadata())
TOKENS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40)
PUSHES = st.lists(TOKENS, max_size=8)
FEW_LETTERS = st.text("abé", max_size=40)
STOPS = st.lists(st.text("abé", min_size=1, max_size=5), max_size=3)


def by_bytes(text):
    """The tokens of single bytes, the finest cut there is."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def run(detokenizer, pushes):
    """What a client receives, and whether a stop string ended it."""
    text, stopped = "", False
    for tokens in pushes:
        new, stopped = detokenizer.push(tokens)
        text += new
    return text + detokenizer.finish(), stopped


def cut_at_first_stop(text, stops):
    """The text up to the stop string that is complete first, the longest of those, by trying every end."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


@given(PUSHES)
def test_all_pushes_together_are_the_decoded_tokens(pushes):
    expected = TOKENIZER.decode([token for tokens in pushes for token in tokens])
    assert run(Detokenizer(TOKENIZER), pushes) == (expected, False)


@given(PUSHES)
def test_each_push_delivers_what_pythons_incremental_decoder_would(pushes):
    detokenizer = Detokenizer(TOKENIZER)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for tokens in pushes:
        data = b"".join(TOKENIZER.token_bytes(token) for token in tokens if TOKENIZER.has_text(token))
        assert detokenizer.push(tokens).text == decoder.decode(data)


@given(FEW_LETTERS, STOPS, st.lists(st.integers(0, 80)))
def test_text_ends_before_the_first_stop_string_however_it_is_cut(text, stops, cuts):
    tokens = by_bytes(text)
    borders = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    pushes = [tokens[a:b] for a, b in pairwise(borders)]
    assert run(Detokenizer(TOKENIZER, stops), pushes) == cut_at_first_stop(text, stops)


@given(FEW_LETTERS, STOPS)
def test_what_was_delivered_is_never_taken_back_nor_held_without_need(text, stops):
    detokenizer = Detokenizer(TOKENIZER, stops)
    expected, _ = cut_at_first_stop(text, stops)
    delivered = ""
    for i, char in enumerate(text):
        new, stopped = detokenizer.push(by_bytes(char))
        delivered += new
        assert expected.startswith(delivered)
        if stopped:
            break
        held = text[len(delivered) : i + 1]
        assert held == "" or any(stop.startswith(held) for stop in stops)


class TestStopStrings:
    def test_a_stop_string_across_tokens_leaks_no_part(self):
        detokenizer = Detokenizer(TOKENIZER, ["END"])
        pushes = [detokenizer.push(by_bytes(text)) for text in ("text E", "N", "D more")]
        assert pushes == [("text ", False), ("", False), ("", True)]
        assert detokenizer.finish() == ""
        assert detokenizer.stop_string == "END"

    def test_of_stop_strings_that_are_complete_at_once_the_longest_is_told(self):
        detokenizer = Detokenizer(TOKENIZER, ["D", "END", "ENDING"])
        assert detokenizer.push(by_bytes("an E")) == ("an ", False)
        assert detokenizer.stop_string == ""
        assert detokenizer.push(by_bytes("NDING")) == ("", True)
        assert detokenizer.stop_string == "END"

    def test_text_held_for_a_stop_string_that_does_not_come_is_delivered(self):
        detokenizer = Detokenizer(TOKENIZER, ["END"])
        assert detokenizer.push(by_bytes("EN")) == ("", False)
        assert detokenizer.push(by_bytes("T")) == ("ENT", False)
        assert detokenizer.push(by_bytes("EN")) == ("", False)
        assert detokenizer.finish() == "EN"

    def test_nothing_follows_a_stop(self):
        detokenizer = Detokenizer(TOKENIZER, ["."])
        assert detokenizer.push(by_bytes("a.b")) == ("a", True)
        assert detokenizer.push(by_bytes("c")) == ("", True)
        assert detokenizer.finish() == ""

    def test_control_tokens_neither_show_nor_part_a_stop_string(self):
        detokenizer = Detokenizer(TOKENIZER, ["END"])
        tokens = [*by_bytes("xE"), CONTROLS["<|im_start|>"], *by_bytes("ND")]
        assert detokenizer.push(tokens) == ("x", True)

    def test_an_empty_stop_string_is_refused(self):
        with pytest.raises(RequestError, match="empty string"):
            Detokenizer(TOKENIZER, ["a", ""])


def test_a_character_waits_for_its_last_byte():
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.push([token]).text for token in by_bytes("é🎉")] == ["", "é", "", "", "", "🎉"]
    assert detokenizer.push(by_bytes("🎉")[:3]) == ("", False)
    assert detokenizer.finish() == "\ufffd"


def test_the_work_for_a_token_does_not_grow_with_the_text():
    detokenizer = Detokenizer(TOKENIZER, ["a" * 2000 + "b"])
    token = by_bytes("a")
    start = time.thread_time()
    for _ in range(20_000):
        detokenizer.push(token)
    assert time.thread_time() - start < 2


def test_a_stop_string_may_be_part_of_the_text():
    detokenizer = Detokenizer(TOKENIZER, ["END", "D"], include_stop=True)
    assert detokenizer.push(by_bytes("an END of it")) == ("an END", True)
    assert (detokenizer.finish(), detokenizer.stop_string) == ("", "END")


def test_a_stop_string_that_comes_too_early_is_text_like_any_other():
    detokenizer = Detokenizer(TOKENIZER, ["END", "."])
    early = [detokenizer.push(by_bytes(text), may_stop=False) for text in ("a.b END", " ENEND and EN")]
    assert "".join(text for text, _ in early) + detokenizer._held == "a.b END ENEND and EN"
    assert not any(stopped for _, stopped in early)
    delivered = detokenizer.push(by_bytes("D too"))
    assert delivered.stopped
    assert "".join(text for text, _ in early) + delivered.text == "a.b END ENEND and "
