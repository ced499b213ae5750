"""One replica of a simulation: a real engine on the simulated backend."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.engine.cache_events import CacheEvents
from headrace.engine.engine import Engine, EngineConfig
from headrace.engine.request import Output, PrefixNamespace, Request
from headrace.fleet.step_time import StepTime
from headrace.simulate.backend import SimulatedBackend

NAMESPACE = PrefixNamespace("simulated")


class SimulatedReplica:
    """Steps begin and end when the simulation says so; in between requests may be added."""

    def __init__(self, name: str, step_time: StepTime, unit: int, config: EngineConfig):
        """`config` counts in units."""
        self.name = name
        self._backend = SimulatedBackend(step_time, unit, config.max_batch_tokens)
        self.engine = Engine(self._backend, config)
        self.stepping = False
        self.busy = 0.0
        """Seconds in steps."""
        self._began = 0.0
        self.engine.take_cache_events()

    def add(self, request_id: str, prompt: tuple[int, ...], outputs: int) -> None:
        """Queue a request; lengths in units. Raises CacheTooSmallError."""
        self.engine.add(Request(request_id, prompt, outputs, NAMESPACE))

    def begin(self, now: float) -> float | None:
        """Begin a step; returns the seconds that it takes when alone, None where there is nothing to do."""
        if self.stepping or not self.engine.submit():
            return None
        self.stepping, self._began = True, now
        return self._backend.seconds

    def end(self, now: float) -> Iterator[Output]:
        """What the step brought."""
        self.stepping = False
        self.busy += now - self._began
        yield from self.engine.collect()

    def cache_events(self) -> CacheEvents:
        """Since the last call."""
        return self.engine.take_cache_events()
