"""From what a simulation brought to the field's measures; `bench.serve.metrics` says what each means."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.bench.serve.metrics import Limits, spread
from headrace.simulate.run import Served, Simulated


def ttft(served: Served) -> float:
    """Seconds."""
    return served.first - served.arrival


def tpot(served: Served) -> float | None:
    """Seconds; None for an answer of one token."""
    return (served.last - served.first) / (served.output_len - 1) if served.output_len > 1 else None


def report(simulated: Simulated, limits: Limits) -> dict[str, object]:
    """All measures; times in milliseconds, rates per second."""
    served = simulated.served
    seconds = max(one.last for one in served) - served[0].arrival
    inputs, cached = sum(one.input_len for one in served), sum(one.cached for one in served)
    outputs = sum(one.output_len for one in served)
    loads = [_load(simulated, number, seconds) for number in range(len(simulated.busy))]
    computed = [load["computed_input_tokens"] for load in loads]
    summary: dict[str, object] = {
        "requests": len(served),
        "duration_s": round(seconds, 3),
        "requests_per_s": round(len(served) / seconds, 3),
        "input_tokens": inputs,
        "cached_input_tokens": cached,
        "hit_rate": round(cached / inputs, 4),
        "output_tokens": outputs,
        "input_tokens_per_s": round(inputs / seconds, 1),
        "output_tokens_per_s": round(outputs / seconds, 1),
        "ttft_ms": spread([ttft(one) for one in served]),
        "tpot_ms": spread([value for one in served if (value := tpot(one)) is not None]),
        "latency_ms": spread([one.last - one.arrival for one in served]),
        "busiest_to_mean": round(max(computed) * len(computed) / max(1, sum(computed)), 3),
        "replicas": loads,
    }
    if limits != Limits():
        good = sum(_is_good(one, limits) for one in served)
        attained = {"requests_per_s": round(good / seconds, 3), "attainment": round(good / len(served), 4)}
        summary["goodput"] = {"slo_ttft_ms": limits.ttft_ms, "slo_tpot_ms": limits.tpot_ms} | attained
    return summary


def _load(simulated: Simulated, number: int, seconds: float) -> dict[str, float]:
    mine: Sequence[Served] = [one for one in simulated.served if one.replica == number]
    prompts = [one for one in simulated.served if one.prefilled_by == number]
    return {
        "requests": len(mine),
        "computed_input_tokens": sum(one.input_len - one.cached for one in prompts),
        "cached_input_tokens": sum(one.cached for one in prompts),
        "output_tokens": sum(one.output_len for one in mine),
        "busy": round(simulated.busy[number] / seconds, 4),
    }


def _is_good(served: Served, limits: Limits) -> bool:
    per_token = tpot(served)
    in_time = limits.ttft_ms is None or ttft(served) * 1e3 <= limits.ttft_ms
    return in_time and (limits.tpot_ms is None or per_token is None or per_token * 1e3 <= limits.tpot_ms)
