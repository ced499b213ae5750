"""What /metrics tells Prometheus: the gateway's counts and times, and the engine's gauges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.engine.stats import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
_TPOT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_DURATION_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)

_REPLICA = ["model", "replica"]

_GAUGES = {
    "headrace_queue_requests": ("Sequences that wait in the engine's queue.", "waiting"),
    "headrace_running_requests": ("Sequences that are being computed.", "running"),
    "headrace_cache_blocks": ("Blocks of the KV cache.", "blocks_total"),
    "headrace_cache_blocks_used": ("Blocks held by running requests.", "blocks_used"),
    "headrace_tier_saved_seconds": ("Time saved by fetching instead of computing.", "tier_seconds_saved"),
    "headrace_cache_blocks_cached": ("Blocks held by the prefix tree alone.", "blocks_cached"),
}
_COUNTERS = {
    "headrace_engine_prompt_tokens": ("Prompt tokens admitted.", "prompt_tokens"),
    "headrace_engine_computed_tokens": ("Rows computed, prompt and output.", "computed_tokens"),
    "headrace_prefix_hit_tokens": ("Prompt tokens found in the prefix tree.", "cached_tokens"),
    "headrace_engine_generated_tokens": ("Tokens sampled.", "generated_tokens"),
    "headrace_imported_tokens": (
        "Tokens whose blocks came from another worker or from disk.",
        "imported_tokens",
    ),
    "headrace_tier_written_blocks": ("Evicted blocks written to disk.", "tier_blocks_written"),
    "headrace_tier_written_bytes": ("Bytes of evicted blocks written to disk.", "tier_bytes_written"),
    "headrace_tier_read_blocks": ("Blocks fetched from disk.", "tier_blocks_read"),
    "headrace_tier_read_bytes": ("Bytes of blocks fetched from disk.", "tier_bytes_read"),
    "headrace_tier_broken_blocks": ("Blocks found broken on disk, and removed.", "tier_blocks_broken"),
    "headrace_tier_dropped_blocks": ("Evicted blocks that the disk did not take.", "tier_blocks_dropped"),
    "headrace_preemptions": ("Sequences set back for want of blocks.", "preemptions"),
    "headrace_steps": ("Steps computed.", "steps"),
    "headrace_drafted_tokens": ("Tokens drafted and verified.", "drafted_tokens"),
    "headrace_accepted_tokens": ("Drafted tokens that were right.", "accepted_tokens"),
}


class _EngineCollector(Collector):
    """Turns the engines' latest figures into metrics; their counters begin anew with a new worker."""

    def __init__(self) -> None:
        self.stats: Mapping[str, Mapping[str, EngineStats]] = {}

    def collect(self) -> Iterator[Metric]:
        for name, (text, field) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=_REPLICA)
            for labels, stats in self._replicas():
                gauge.add_metric(labels, getattr(stats, field))
            yield gauge
        for name, (text, field) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=_REPLICA)
            for labels, stats in self._replicas():
                counter.add_metric(labels, getattr(stats, field))
            yield counter

    def _replicas(self) -> Iterator[tuple[list[str], EngineStats]]:
        for model, replicas in self.stats.items():
            for replica, stats in replicas.items():
                yield [model, replica], stats


class Metrics:
    """One gateway's metrics, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._engines = _EngineCollector()
        self._registry.register(self._engines)
        by_model = ["model"]
        self.requests = Counter(
            "headrace_requests",
            "Requests answered, by endpoint and HTTP status; 499 where the client went away.",
            ["endpoint", "status"],
            registry=self._registry,
        )
        self.prompt_tokens = Counter(
            "headrace_prompt_tokens", "Tokens of accepted prompts.", by_model, registry=self._registry
        )
        self.generated_tokens = Counter(
            "headrace_generated_tokens", "Tokens generated for clients.", by_model, registry=self._registry
        )
        self.ttft = Histogram(
            "headrace_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            by_model,
            buckets=_TTFT_SECONDS,
            registry=self._registry,
        )
        self.tpot = Histogram(
            "headrace_time_per_output_token_seconds",
            "Mean time between the tokens of one sequence, the first excluded.",
            by_model,
            buckets=_TPOT_SECONDS,
            registry=self._registry,
        )
        self.duration = Histogram(
            "headrace_request_duration_seconds",
            "From a request's arrival to its last token.",
            by_model,
            buckets=_DURATION_SECONDS,
            registry=self._registry,
        )

    @property
    def registry(self) -> CollectorRegistry:
        """Where other parts' metrics go."""
        return self._registry

    def render(self, engines: Mapping[str, Mapping[str, EngineStats]]) -> bytes:
        """The text that Prometheus reads; `engines` holds the latest figures by model and replica."""
        self._engines.stats = engines
        return generate_latest(self._registry)
