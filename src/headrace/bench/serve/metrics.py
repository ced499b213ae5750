"""From records to the field's measures.

- TTFT, time to first token: from when a request was sent (in an open loop: due) to its first piece of text.
- End-to-end latency: from the same moment to the last piece, the one with the finish reason included.
- TPOT, time per output token: (latency − TTFT) / (n − 1) for an answer of n tokens, one value for each
  request, none where n is 1. As `vllm bench serve` defines it.
- ITL, inter-token latency: the time between two successive pieces of an answer, one value for each gap. A
  server that sends several tokens in one piece has fewer and longer gaps.
- Goodput: requests a second that met every limit given, on TTFT and on TPOT (an answer of one token on TTFT
  alone). DistServe (Zhong et al., OSDI'24, https://arxiv.org/abs/2401.09670) calls goodput the highest rate
  at which a given part of all requests, such as 90%, meets them; `attainment` is that part at the rate
  measured. A failed request meets none.

Percentiles interpolate between the two nearest values. Failed requests count in `failed`, `duration_s` and
`attainment` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headrace.bench.serve.record import Record

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a good request keeps to (service level objectives), in milliseconds; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


def ttft(record: Record) -> float:
    """Seconds. An answer without any text has its first token when it ends."""
    return (record.chunk_times[0] if record.chunk_times else record.ended) - record.started


def tpot(record: Record) -> float | None:
    """Seconds."""
    if record.output_tokens < 2:
        return None
    return (record.ended - record.started - ttft(record)) / (record.output_tokens - 1)


def is_good(record: Record, limits: Limits) -> bool:
    """Whether it was answered within the limits."""
    if record.failure is not None:
        return False
    per_token = tpot(record)
    first_in_time = limits.ttft_ms is None or ttft(record) * 1e3 <= limits.ttft_ms
    return first_in_time and (
        limits.tpot_ms is None or per_token is None or per_token * 1e3 <= limits.tpot_ms
    )


def duration(records: Sequence[Record]) -> float:
    """Seconds from the first request to the last one's end."""
    return max(r.ended for r in records) - min(r.started for r in records if r.started)


def summarize(records: Sequence[Record], limits: Limits) -> dict[str, object]:
    """All measures; times in milliseconds, rates per second. At least one request was answered."""
    answered = [record for record in records if record.failure is None]
    assert answered, "nothing to measure"
    seconds = duration(records)
    inputs = sum(record.input_tokens for record in answered)
    outputs = sum(record.output_tokens for record in answered)
    per_token = [value for record in answered if (value := tpot(record)) is not None]
    summary: dict[str, object] = {
        "completed": len(answered),
        "failed": len(records) - len(answered),
        "failures": dict(Counter(record.failure for record in records if record.failure is not None)),
        "short_answers": sum(record.output_tokens < record.asked_tokens for record in answered),
        "duration_s": round(seconds, 3),
        "requests_per_s": round(len(answered) / seconds, 3),
        "input_tokens": inputs,
        "cached_input_tokens": sum(record.cached_tokens for record in answered),
        "output_tokens": outputs,
        "input_tokens_per_s": round(inputs / seconds, 1),
        "output_tokens_per_s": round(outputs / seconds, 1),
        "ttft_ms": spread([ttft(record) for record in answered]),
        "tpot_ms": spread(per_token),
        "itl_ms": spread(np.concatenate([np.diff(record.chunk_times) for record in answered])),
        "latency_ms": spread([record.ended - record.started for record in answered]),
    }
    if limits != Limits():
        good = sum(is_good(record, limits) for record in records)
        attained = {"requests_per_s": round(good / seconds, 3), "attainment": round(good / len(records), 4)}
        summary["goodput"] = {"slo_ttft_ms": limits.ttft_ms, "slo_tpot_ms": limits.tpot_ms} | attained
    return summary


def spread(seconds: ArrayLike) -> Mapping[str, float | None]:
    """Mean and percentiles in milliseconds; None each where there is no value."""
    values = np.asarray(seconds, dtype=np.float64) * 1e3
    if not values.size:
        return dict.fromkeys(["mean", *(f"p{p}" for p in PERCENTILES)])
    found = np.percentile(values, PERCENTILES)
    named = {f"p{p}": round(float(value), 3) for p, value in zip(PERCENTILES, found, strict=True)}
    return {"mean": round(float(values.mean()), 3)} | named
