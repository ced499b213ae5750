"""The measures, on records made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.serve.metrics import Limits, is_good, spread, summarize, tpot, ttft
from headrace.bench.serve.plot import throughput
from headrace.bench.serve.record import Record


def answered(started: float, *pieces: float, tokens: int | None = None, cached: int = 0) -> Record:
    return Record(
        asked_tokens=len(pieces),
        started=started,
        sent=started,
        chunk_times=list(pieces),
        ended=pieces[-1],
        input_tokens=10,
        cached_tokens=cached,
        output_tokens=len(pieces) if tokens is None else tokens,
    )


def failed(started: float, kind: str) -> Record:
    record = Record(asked_tokens=3, started=started)
    record.fail(kind, "", started + 1)
    return record


def test_ttft_and_tpot_are_taken_from_the_first_piece_and_the_last():
    record = answered(10.0, 10.5, 10.6, 11.1)
    assert ttft(record) == pytest.approx(0.5)
    assert tpot(record) == pytest.approx(0.6 / 2)


def test_tpot_counts_tokens_not_pieces():
    assert tpot(answered(0.0, 1.0, 2.0, tokens=5)) == pytest.approx(1.0 / 4)


def test_an_answer_of_one_token_has_no_tpot():
    assert tpot(answered(0.0, 1.0)) is None
    assert summarize([answered(1.0, 2.0)], Limits())["tpot_ms"]["mean"] is None


def test_an_answer_without_text_has_its_first_token_when_it_ends():
    assert ttft(Record(asked_tokens=1, started=1.0, ended=3.0, output_tokens=1)) == 2.0


def test_a_summary_counts_what_was_answered_and_says_what_was_not():
    records = [
        answered(1.0, 1.1, 1.2, cached=4),
        answered(2.0, 2.5, 3.0),
        failed(2.0, "http_429"),
        failed(4.0, "http_429"),
    ]
    summary = summarize(records, Limits())
    assert (summary["completed"], summary["failed"], summary["failures"]) == (2, 2, {"http_429": 2})
    assert summary["duration_s"] == 4.0
    assert summary["requests_per_s"] == 0.5
    assert (summary["input_tokens"], summary["cached_input_tokens"], summary["output_tokens"]) == (20, 4, 4)
    assert summary["output_tokens_per_s"] == 1.0
    assert summary["itl_ms"]["mean"] == pytest.approx((100 + 500) / 2)
    assert summary["latency_ms"]["p50"] == pytest.approx((200 + 1000) / 2)
    assert "goodput" not in summary


def test_goodput_wants_every_limit_met_and_no_failure():
    quick, slow_first, slow_after = (
        answered(1.0, 1.1, 1.2),
        answered(1.0, 1.9, 2.0),
        answered(1.0, 1.1, 2.0),
    )
    limits = Limits(ttft_ms=200, tpot_ms=300)
    assert [is_good(r, limits) for r in (quick, slow_first, slow_after)] == [True, False, False]
    assert [is_good(r, Limits(ttft_ms=200)) for r in (quick, slow_first, slow_after)] == [True, False, True]
    assert is_good(answered(1.0, 1.1), limits), "one token is judged by its TTFT alone"
    goodput = summarize([quick, slow_first, slow_after, failed(1.0, "timeout")], limits)["goodput"]
    assert goodput["requests_per_s"] == 1.0
    assert goodput["attainment"] == 0.25


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_percentiles_are_ordered_and_within_the_values(seconds):
    measured = spread(seconds)
    ordered = [measured[name] for name in ("p50", "p90", "p95", "p99")]
    assert ordered == sorted(ordered)
    assert min(seconds) * 1e3 - 0.001 <= ordered[0]
    assert ordered[-1] <= max(seconds) * 1e3 + 0.001


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(0.01, 5), st.integers(1, 9)), min_size=1, max_size=20))
def test_throughput_over_time_adds_up_to_all_tokens(drawn):
    records = [answered(start, start + gap, start + 2 * gap, tokens=n) for start, gap, n in drawn]
    edges, rates = throughput(records)
    assert np.sum(rates * np.diff(edges)) == pytest.approx(sum(n for *_, n in drawn))
