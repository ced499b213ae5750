"""One worker's steps as a planner reckons with them: rows and their context, no blocks and no tokens."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

from headrace.fleet.balance import Balancer
from headrace.fleet.step_time import StepTime


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One worker's speed and room."""

    step_time: StepTime
    budget: int = 256
    """The most rows of a step."""
    max_running: int = 64
    cache_tokens: int = 1 << 60


@dataclass(slots=True)
class Job:
    """A prompt that is to be computed, then perhaps a stream."""

    index: int
    ready: float
    """When it comes to the worker."""
    start: int
    """Tokens that need not be computed."""
    left: int
    stays: bool
    """Whether its stream goes on here."""
    output: int

    @property
    def context(self) -> int:
        return self.start + self.left


class Times:
    """When requests have their first and last tokens, and which of these the balancer does not know."""

    def __init__(self) -> None:
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self._news: list[tuple[float, int, bool]] = []

    def began(self, index: int, now: float) -> None:
        self.first[index] = now
        self._news.append((now, index, False))

    def ended(self, index: int, now: float) -> None:
        self.last[index] = now
        self._news.append((now, index, True))

    def tell(self, balancer: Balancer) -> None:
        """What has happened since the last call, in order."""
        for now, index, ended in sorted(self._news):
            (balancer.finished if ended else balancer.first_token)(str(index), now)
        self._news.clear()


class ModelledWorker:
    """Computes as the engine: each step a row of every stream, and prompts, in order, in the room left."""

    def __init__(self, model: WorkerModel, times: Times):
        self._model = model
        self._times = times
        self.now = 0.0
        self.busy = 0.0
        self._steps = 0
        self._jobs: deque[Job] = deque()
        self._streams: list[tuple[int, int, int]] = []
        """A heap of (step at whose end it ends, request, tokens of context at its end)."""
        self._context = 0
        """Of all streams."""

    def add(self, job: Job) -> None:
        """The job comes; the worker must have been run up to then."""
        if not self._jobs and not self._streams:
            self.now = max(self.now, job.ready)
        self._jobs.append(job)

    def run(self, until: float) -> None:
        """Steps that begin before `until`."""
        while self.now < until and (self._jobs or self._streams):
            self._step(until)

    def _step(self, until: float) -> None:
        """One step, or several alike."""
        model, streams = self._model, len(self._streams)
        room = max(model.budget - streams, 1)
        head = self._jobs[0] if self._jobs and self._fits(self._jobs[0]) else None
        count = self._alike(head, room, until)
        taken, attended = 0, count * self._context + streams * count * (count + 1) / 2
        done: list[Job] = []
        while head is not None and taken < room * count:
            tokens = min(head.left, room * count - taken)
            attended += tokens * (head.start + (tokens + 1) / 2)
            head.start, head.left = head.start + tokens, head.left - tokens
            taken += tokens
            if head.left:
                break
            done.append(self._jobs.popleft())
            head = self._jobs[0] if self._jobs and self._fits(self._jobs[0], len(done)) else None
        time = model.step_time
        seconds = count * time.base + time.row * (taken + count * streams) + time.context * attended
        self.now += seconds
        self.busy += seconds
        self._steps += count
        self._context += streams * count
        self._end_streams()
        for job in done:
            self._first_token(job)

    def _alike(self, head: Job | None, room: int, until: float) -> int:
        """How many steps have the same rows: until a prompt or a stream ends, or something may come."""
        streams, time = len(self._streams), self._model.step_time
        count = self._streams[0][0] - self._steps if streams else 1 << 30
        if head is not None:
            count = min(count, max(1, head.left // room))
        rows = streams + (min(room, head.left) if head is not None else 0)
        if math.isfinite(until):
            count = min(count, max(1, math.ceil((until - self.now) / time.seconds(rows, self._context))))
        return count

    def _fits(self, job: Job, more: int = 0) -> bool:
        """Whether it may run beside the streams; alone it may in any case."""
        streams = len(self._streams) + more
        return not streams or (
            streams < self._model.max_running
            and self._context + job.context + job.output <= self._model.cache_tokens
        )

    def _end_streams(self) -> None:
        while self._streams and self._streams[0][0] <= self._steps:
            _, index, context = heappop(self._streams)
            self._context -= context
            self._times.ended(index, self.now)

    def _first_token(self, job: Job) -> None:
        self._times.began(job.index, self.now)
        if not job.stays or job.output == 1:
            self._times.ended(job.index, self.now)
            return
        context = job.start + job.output - 1
        heappush(self._streams, (self._steps + job.output - 1, job.index, context))
        self._context += job.start
