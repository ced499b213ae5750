"""The steps that are under way, and when they end: workers of one host slow each other down."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count

from headrace.fleet.step_time import StepTime
from headrace.simulate.replica import SimulatedReplica


class StepsUnderWay:
    """All steps progress equally fast (processor sharing), the slower the more of them there are.

    So what counts is the work that each has had since the beginning: a step ends when that has grown by its
    own seconds. It grows with time, by less than a second a second where a host is shared.
    """

    def __init__(self, step_time: StepTime):
        self._step_time = step_time
        self._ends: list[tuple[float, int, SimulatedReplica]] = []
        """A heap, by the work at which a step ends."""
        self._serials = count()
        self._now = self._work = 0.0

    @property
    def next_end(self) -> float:
        """When the next one ends, unless others begin before; infinity where there is none."""
        if not self._ends:
            return math.inf
        return self._now + (self._ends[0][0] - self._work) * self._slower()

    def begin(self, replica: SimulatedReplica, seconds: float, now: float) -> None:
        """A step begins that takes so many seconds when it is alone; `now` is not after `next_end`."""
        if self._ends:
            self._work += (now - self._now) / self._slower()
        self._now = now
        heappush(self._ends, (self._work + seconds, next(self._serials), replica))

    def end(self) -> SimulatedReplica:
        """Whose step ends next; it is `next_end` then."""
        now = self.next_end
        self._work, _, replica = heappop(self._ends)
        self._now = now
        return replica

    def _slower(self) -> float:
        return self._step_time.slower(len(self._ends))
