"""Server-sent events, however they are cut into pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.remotes.sse import MAX_EVENT_BYTES, EventParser, EventTooLongError

STREAM = (
    b"\xef\xbb\xbf: a comment\n"
    b"event: one\nid: 7\ndata: first\n\n"
    b"data: of two\r\ndata:  lines\r\n\r\n"
    b"data:no space\rdata\r\r"
    b"retry: 10\n\n\n"
    b"data: last\n\ndata: never ended"
)
EVENTS = [b"first", b"of two\n lines", b"no space\n", b"last"]


def parsed(*chunks: bytes) -> list[bytes]:
    parser = EventParser()
    return [bytes(event) for chunk in chunks for event in parser.feed(chunk)]


@given(st.lists(st.integers(0, len(STREAM))))
def test_it_does_not_matter_how_a_stream_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert parsed(*chunks) == EVENTS


def test_a_stream_may_come_byte_by_byte() -> None:
    assert parsed(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == EVENTS


@pytest.mark.parametrize("piece", [b"x" * 1000, b"data: " + b"x" * 1000 + b"\n", b"data\n" * 200])
def test_what_never_ends_is_not_kept(piece: bytes) -> None:
    parser = EventParser()
    with pytest.raises(EventTooLongError):
        for _ in range(MAX_EVENT_BYTES // len(piece) + 10):
            assert parser.feed(piece) == []


@given(st.binary(max_size=300))
def test_no_bytes_break_it(data: bytes) -> None:
    assert parsed(data) == parsed(*(data[i : i + 1] for i in range(len(data))))
