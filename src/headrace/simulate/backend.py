"""A backend that computes nothing: it answers with made-up tokens, and says what a step would take."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from headrace.backends.base import Ticket
from headrace.backends.cache import CacheGroup, CacheSpec
from headrace.backends.fingerprint import Fingerprint
from headrace.backends.step import StepPlan, StepResult
from headrace.fleet.step_time import StepTime

FIRST_OUTPUT = 1 << 30
"""Tokens from here on are outputs, no two of them alike; those below are prompts'."""
VOCABULARY = (1 << 31) - 1


class SimulatedBackend:
    """A token may stand for several: a unit, of which a step then computes as many as it has tokens."""

    cache_spec = CacheSpec((CacheGroup("simulated", (0,), 1, 1),), "simulated")
    fingerprint = Fingerprint("simulated", "simulated", "simulated", "f16")
    vocab_size = VOCABULARY
    max_rows = 1 << 20
    page_cache_bytes = 0

    def __init__(self, step_time: StepTime, unit: int, budget: int):
        self._step_time = step_time
        self._unit = unit
        self._budget = budget
        self._outputs = 0
        self._yields = 0
        self.seconds = 0.0
        """What the step submitted last takes."""

    def allocate_cache(self, blocks: Sequence[int]) -> None:
        """Nothing is kept."""

    def submit(self, plan: StepPlan) -> Ticket:
        """Take the time of a step.

        A unit of a stream is so many steps, one after another; a unit of a prompt is spread over them, or,
        where no stream runs, fills as few steps as it can.
        """
        self._yields = len(plan.yield_rows)
        rows = plan.rows * self._unit
        streams = int(np.count_nonzero(np.diff(plan.sequence_starts) == 1))
        steps = self._unit if streams else ceil(rows / self._budget)
        context = (float(plan.positions.sum()) + plan.rows / 2) * self._unit**2
        self.seconds = (steps - 1) * self._step_time.base + self._step_time.seconds(rows, context)
        return Ticket(0)

    def collect(self, ticket: Ticket) -> StepResult:
        """New tokens for all rows that ask for one."""
        first = self._outputs
        self._outputs += self._yields
        tokens = FIRST_OUTPUT + np.arange(first, self._outputs) % (VOCABULARY - FIRST_OUTPUT)
        return StepResult(tokens=tokens.astype(np.int32))

    def block_view(self, group: int, block: int) -> memoryview:
        """A block of nothing."""
        return memoryview(b"")

    def close(self) -> None:
        """There is nothing to release."""
