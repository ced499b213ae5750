"""What a model was asked lately: how fast requests come, and how long they are. Time is passed in."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import NamedTuple

WINDOW_SECONDS = 300.0
"""How far back it looks."""
MOST_REMEMBERED = 2000
"""Requests; of a busier time only its end is remembered."""


class Lengths(NamedTuple):
    """Of one request, in tokens."""

    prompt: int
    cached: int
    """Of the prompt's, found in a cache."""
    output: int


class Arrival(NamedTuple):
    """A request of a load."""

    at: float
    """Seconds since the load began."""
    lengths: Lengths


@dataclass(frozen=True, slots=True)
class Load:
    """Observed traffic, from which any number of requests like it can be drawn."""

    rate: float
    """Requests a second."""
    gaps: Sequence[float]
    """Between arrivals, in seconds."""
    lengths: Sequence[Lengths]
    """Of requests that have ended, at least one."""

    def drawn(self, requests: int, seed: int = 0) -> Iterator[Arrival]:
        """Requests whose gaps and lengths are drawn from those observed; equal seeds draw the same.

        The mean of the gaps is that of the rate, which knows how long nothing has come now.
        """
        random, at = Random(seed), 0.0
        drawn = [random.choice(self.gaps) for _ in range(requests)]
        stretch = requests / self.rate / max(sum(drawn), 1e-9)
        for gap in drawn:
            at += gap * stretch
            yield Arrival(at, random.choice(self.lengths))

    @property
    def means(self) -> tuple[float, float, float]:
        """Mean tokens of prompts, of what was cached of them, and of outputs."""
        prompts, cached, outputs = zip(*self.lengths, strict=True)
        count = len(self.lengths)
        return sum(prompts) / count, sum(cached) / count, sum(outputs) / count


class Traffic:
    """Observes one model's requests."""

    def __init__(self, window: float = WINDOW_SECONDS):
        """`window`: seconds that are remembered."""
        self._window = window
        self._began: float | None = None
        """When the first request came."""
        self._arrivals: deque[float] = deque(maxlen=MOST_REMEMBERED)
        self._ended: deque[tuple[float, Lengths]] = deque(maxlen=MOST_REMEMBERED)
        self._running: OrderedDict[str, int] = OrderedDict()
        """Tokens of their prompts, by id."""

    def arrived(self, request_id: str, prompt: int, now: float) -> None:
        """A request of a new id came, with so many tokens."""
        self._began = now if self._began is None else self._began
        self._arrivals.append(now)
        self._running[request_id] = prompt

    def ended(self, request_id: str, cached: int, output: int, now: float) -> None:
        """The request has ended, however; nothing happens where it is not known."""
        prompt = self._running.pop(request_id, None)
        if prompt is not None and output:
            self._ended.append((now, Lengths(prompt, min(cached, prompt - 1), output)))

    def load(self, now: float) -> Load | None:
        """What came within the window; None where that is too little to say anything."""
        while self._arrivals and self._arrivals[0] < now - self._window:
            self._arrivals.popleft()
        while self._ended and self._ended[0][0] < now - self._window:
            self._ended.popleft()
        if len(self._arrivals) < 2 or not self._ended:
            return None
        assert self._began is not None
        full = len(self._arrivals) == MOST_REMEMBERED
        since = self._arrivals[0] if full else max(self._began, now - self._window)
        times = list(self._arrivals)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        return Load(len(times) / max(now - since, 1e-3), gaps, [lengths for _, lengths in self._ended])
