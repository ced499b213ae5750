"""One replica of a simulation: a real engine on the simulated backend."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.cache_events import CacheEvents
from headrace.engine.engine import Engine, EngineConfig
from headrace.engine.request import Output, PrefixNamespace, Request
from headrace.fleet.state import Role
from headrace.fleet.step_time import StepTime
from headrace.simulate.backend import SimulatedBackend
from headrace.worker.messages import PROTOCOL_VERSION, Ready

NAMESPACE = PrefixNamespace("simulated")
# Answers are made up: what a later prompt has of a real one, the trace counts as that prompt's own.
_request = partial(Request, namespace=NAMESPACE, cache_output=False)


class SimulatedReplica:
    """Steps begin and end when the simulation says so; in between requests may be added."""

    def __init__(self, name: str, role: Role, step_time: StepTime, unit: int, config: EngineConfig):
        """`config` counts in units."""
        self.name = name
        self.role = role
        self.ready = Ready(
            version=PROTOCOL_VERSION,
            pid=0,
            model=NAMESPACE.model,
            fingerprint=SimulatedBackend.fingerprint,
            context_length=config.cache_blocks * BLOCK_TOKENS,
            cache_blocks=config.cache_blocks,
            block_tokens=BLOCK_TOKENS,
            cache_bytes=0,
            transfer="simulated:",
        )
        """What its worker would say of itself."""
        self._backend = SimulatedBackend(step_time, unit, config.max_batch_tokens)
        self.engine = Engine(self._backend, config)
        self.stepping = False
        self.busy = 0.0
        """Seconds in steps."""
        self._began = 0.0
        self.engine.take_cache_events()

    def add(self, request_id: str, prompt: tuple[int, ...], outputs: int, *, importing: bool) -> None:
        """Queue a request; lengths in units. Raises CacheTooSmallError."""
        self.engine.add(_request(request_id, prompt, outputs, importing=importing))

    def prefill(self, handoff_id: str, prompt: tuple[int, ...]) -> None:
        """Queue a prompt that is computed for another replica. Raises CacheTooSmallError."""
        self.engine.add(_request(handoff_id, prompt, 0, prefill_only=True, exporting=True))

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
