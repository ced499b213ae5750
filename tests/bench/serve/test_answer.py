"""Reading a streamed answer, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.serve.answer import Answer
from headrace.bench.serve.record import Record

COMPLETION = (
    b'data: {"id":"a","choices":[{"index":0,"text":"Hel","finish_reason":null}]}\n\n'
    b'data: {"id":"a","choices":[{"index":0,"text":"lo \xc3\xa4","finish_reason":null}],"usage":null}\n\n'
    b": a comment\r\n\r\n"
    b'data: {"id":"a","choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
    b"data: [DONE]\n\n"
)
FIRST = COMPLETION[: COMPLETION.index(b"\n\n") + 2]
CHAT = (
    b'data:{"choices":[{"delta":{"role":"assistant","content":""}}]}\r\n\r\n'
    b'data:{"choices":[{"delta":{"content":"Hi"}}]}\r\n\r\n'
    b'data:{"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\n'
    b"data: [DONE]\r\n\r\n"
)


def read(*parts: bytes, status: int = 200, failure: str = "") -> Answer:
    """The parts come at 1, 2, … seconds, the end after them."""
    answer = Answer(Record(asked_tokens=3))
    answer.begin(status)
    for when, part in enumerate(parts, 1):
        answer.feed(part, float(when))
    answer.end(len(parts) + 1.0, failure)
    return answer


@given(st.lists(st.integers(0, len(COMPLETION)), max_size=12))
def test_where_the_bytes_are_cut_changes_nothing_that_is_counted(cuts):
    edges = [0, *sorted(cuts), len(COMPLETION)]
    answer = read(*(COMPLETION[a:b] for a, b in pairwise(edges)))
    record = answer.record
    assert answer.text == "Hello ä"
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (7, 3, 4)
    assert len(record.chunk_times) == 2
    assert record.failure is None


def test_only_pieces_with_text_are_timed_and_the_finish_reason_ends_the_answer():
    lines = COMPLETION.split(b"\n\n")
    record = read(*(line + b"\n\n" for line in lines)).record
    assert record.chunk_times == [1.0, 2.0]
    assert record.ended == 3.0


def test_a_chat_answer_is_read_and_tokens_are_counted_where_no_usage_is_told():
    answer = read(CHAT)
    assert answer.text == "Hi"
    assert answer.record.chunk_times == [1.0]
    assert answer.record.output_tokens == 1


def test_every_kind_of_failure_has_its_name():
    error = b'{"error":{"message":"too many","type":"x"}}'
    kinds = {
        "http_429": read(error, status=429),
        "http_502": read(b"<html>", status=502),
        "error_event": read(FIRST, b"data: " + error + b"\n\n"),
        "malformed": read(b"data: {no json}\n\n"),
        "incomplete": read(FIRST),
        "disconnected": read(FIRST, failure="reset"),
    }
    assert {name: answer.record.failure for name, answer in kinds.items()} == {n: n for n in kinds}
    assert kinds["http_429"].record.message == kinds["error_event"].record.message == "too many"
    assert kinds["http_502"].record.message == "<html>"
    assert all(answer.record.ended > 0 for answer in kinds.values())
