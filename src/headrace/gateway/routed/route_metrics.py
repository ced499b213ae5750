"""What /metrics tells of routing: who answers, why not, what it costs, and whether quality is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.gateway.routed.execution import Execution
from headrace.gateway.routed.member import Member
from headrace.gateway.routed.rule import Rule
from headrace.routing.watched import WatchState

_DECISION_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)
_RATIOS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)


class RouteMetrics:
    """Counts and times, in the gateway's registry."""

    def __init__(
        self,
        registry: CollectorRegistry,
        rules: Mapping[str, Rule],
        members: Mapping[str, Member],
        dropped: Callable[[], int],
    ) -> None:
        """`dropped`: samples for the shadow that came to no score."""
        registry.register(_States(rules, members, dropped))
        self._answers = Counter(
            "headrace_routed_requests",
            "Routed requests by what they named, the model that answered, and how they ended.",
            ["policy", "model", "status"],
            registry=registry,
        )
        self._cost = Counter(
            "headrace_route_cost",
            "What answers cost, in the currency of the prices, by the model that was asked.",
            ["policy", "model"],
            registry=registry,
        )
        self._attempts = Counter(
            "headrace_route_attempts",
            "Requests sent to a model; several for one that failed, was late, or was not sure.",
            ["policy", "model"],
            registry=registry,
        )
        self._turns = Counter(
            "headrace_route_turns",
            "Answers that took more than one model: fallback, hedge, cascade, continuation.",
            ["policy", "turn"],
            registry=registry,
        )
        self._decision = Histogram(
            "headrace_route_decision_seconds",
            "To decide who answers.",
            ["policy"],
            buckets=_DECISION_SECONDS,
            registry=registry,
        )
        self._ratio = Histogram(
            "headrace_route_first_token_ratio",
            "Measured time to first token over the predicted one.",
            ["model"],
            buckets=_RATIOS,
            registry=registry,
        )

    def decided(self, policy: str, seconds: float) -> None:
        """A decision took so long."""
        self._decision.labels(policy).observe(seconds)

    def embedded(self, model: str, status: str, cost: float) -> None:
        """A request for embeddings of a model elsewhere has ended."""
        self._answers.labels(model, model, status).inc()
        self._attempts.labels(model, model).inc()
        self._cost.labels(model, model).inc(cost)

    def ended(self, execution: Execution, status: str) -> None:
        """A request has ended."""
        policy = execution.route.rule.name
        speaker = execution.spoken[0].name if execution.spoken else "-"
        self._answers.labels(policy, speaker, status).inc()
        for attempt in execution.attempts:
            self._attempts.labels(policy, attempt.name).inc()
            self._cost.labels(policy, attempt.name).inc(attempt.cost)
            predicted = attempt.candidate.first_token
            if attempt.number == 0 and attempt.first_token is not None and predicted > 0:
                self._ratio.labels(attempt.name).observe(attempt.first_token / predicted)
        turns = {
            "fallback": execution.fell_back,
            "hedge": execution.hedged,
            "cascade": execution.cascaded,
            "continuation": len(execution.spoken) > 1,
        }
        for turn, taken in turns.items():
            if taken:
                self._turns.labels(policy, turn).inc()


class _States(Collector):
    """What watches and circuits are like when asked."""

    def __init__(
        self, rules: Mapping[str, Rule], members: Mapping[str, Member], dropped: Callable[[], int]
    ) -> None:
        self._dropped = dropped
        self._rules = rules
        self._members = members

    def collect(self) -> Iterator[Metric]:
        circuit = GaugeMetricFamily(
            "headrace_route_circuit_open", "1 where a model is left alone for its failures.", labels=["model"]
        )
        for name, member in self._members.items():
            circuit.add_metric([name], float(member.breaker.open))
        yield circuit
        yield CounterMetricFamily(
            "headrace_route_shadow_dropped",
            "Samples that came to no score: the server was busy, a model failed, or the grader said none.",
            self._dropped(),
        )
        states = {name: rule.watch.state() for name, rule in self._rules.items() if rule.watch is not None}
        for metric, (text, value) in _WATCHED.items():
            gauge = GaugeMetricFamily(metric, text, labels=["policy"])
            for name, state in states.items():
                if (number := value(state)) is not None:
                    gauge.add_metric([name], float(number))
            yield gauge


_WATCHED: dict[str, tuple[str, Callable[[WatchState], float | None]]] = {
    "headrace_route_quality_asked": ("Share of the best model's quality.", lambda s: s.quality),
    "headrace_route_quality_realised": (
        "The same, as shadow scores have it.",
        lambda s: None if s.realised is None else s.realised.quality,
    ),
    "headrace_route_quality_realised_low": (
        "Its 95% interval's lower end.",
        lambda s: None if s.realised is None else s.realised.lowest,
    ),
    "headrace_route_slack": ("Slack of the choice in use; -1 where the best answers all.", lambda s: s.slack),
    "headrace_route_shadow_scored": ("Requests scored in the shadow.", lambda s: s.scored),
    "headrace_route_shadow_cost": ("What that has cost.", lambda s: s.spent),
    "headrace_route_drifted": (
        "1 where the promise was found broken, and not yet restored.",
        lambda s: s.drifted,
    ),
    "headrace_route_alarms": ("How often it was found broken.", lambda s: s.alarms),
    "headrace_route_feedback": ("Scores that users gave.", lambda s: s.feedback),
}
"""Gauges by name: what they mean, and how a watch's state has them."""
