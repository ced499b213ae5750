"""Scoring a share of the routed answers behind the clients' backs: no client waits for it.

A sample waits in a short queue, and is dropped where that is full, or the server busy when its turn comes; so
what is scored stands for requests in quieter hours more than for others.
Then the models answer that the watch wants to know of, the grader compares, and the watch is told. The texts
live until then and no longer, and none is logged; what is kept are scores.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

import numpy as np

from headrace.errors import HeadraceError
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.shadow.grader import Grader
from headrace.gateway.shadow.sample import Answered, Sample, as_text, can_be_scored, in_the_shadow
from headrace.routing.store import Score
from headrace.routing.watch import Watch
from headrace.routing.watched import NOT_PROMISED

log = logging.getLogger("headrace.gateway")

Asked = Callable[[str, ChatRequest], Awaitable[Answered]]
"""Has a model answer a request, in gaps that clients leave. Raises HeadraceError where it cannot."""

_SECONDS = 600.0
"""For all that one sample needs; slow answers are no worse, so it is long."""

_TELL_SECONDS = 10.0
"""To save a watch takes milliseconds."""


class Shadow:
    """Belongs to one event loop; used as `async with`. Its end cancels what is under way."""

    def __init__(
        self,
        ask: Asked,
        grader: Grader,
        *,
        keep: Callable[[Score], None] = lambda score: None,
        learnt: Callable[[Watch], None] = lambda watch: None,
        busy: Callable[[], bool] = lambda: False,
        at_once: int = 2,
        most_waiting: int = 32,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`keep` is given each score; `learnt`, every few seconds and at the end, each watch that was told of
        some. While `busy`, none is begun."""
        self.dropped = 0
        """Samples that were wanted, but never scored: the queue was full, the server busy, a model failed."""
        self._ask, self._grader, self._busy, self._draw = ask, grader, busy, draw
        self._keep, self._learnt = keep, learnt
        self._at_once, self._most_waiting = at_once, most_waiting
        self._waiting: deque[Sample] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._told: set[Watch] = set()
        self._telling: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Shadow:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sample in self._waiting:
            sample.watch.spent(-self._expected(sample))
        self._waiting.clear()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._telling is not None:
            self._telling.cancel()
            self._tell_learnt()

    def offer(self, sample: Sample) -> bool:
        """Considers a routed answer that was given in full: every one, so that those scored are drawn evenly.

        True where it will be scored, if nothing comes in between.
        """
        asks = sample.watch.asks(sample.good, sample.answered)
        if not asks or not can_be_scored(sample.request) or not sample.watch.wants_sample(self._draw()):
            return False
        if len(self._waiting) >= self._most_waiting or self._busy():
            self.dropped += 1
            return False
        self._waiting.append(sample)
        sample.watch.spent(self._expected(sample))
        self._begin()
        return True

    def _expected(self, sample: Sample) -> float:
        asked = sum(sample.costs[model] for model in sample.watch.asks(sample.good, sample.answered))
        return asked + self._grader.asks * sample.grading

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            task = asyncio.create_task(self._score(self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            self._begin()

    async def _score(self, sample: Sample) -> None:
        """Never raises but for its cancellation. What was set aside is settled however it ends."""
        bill = _Bill(self._ask)
        try:
            if self._busy():
                self.dropped += 1
                return
            self._tell(sample, await asyncio.wait_for(self._graded(sample, bill), _SECONDS))
        except (HeadraceError, asyncio.TimeoutError) as error:
            self.dropped += 1
            log.info("an answer was not scored: %s", type(error).__name__)
        except Exception as error:  # a user's grader
            self.dropped += 1
            log.warning("the grader failed: %s", type(error).__name__)
        finally:
            sample.watch.spent(bill.cost - self._expected(sample))

    async def _graded(self, sample: Sample, bill: _Bill) -> dict[str, float]:
        watch = sample.watch
        names = [watch.models[model] for model in watch.asks(sample.good, sample.answered)]
        answers = {watch.models[sample.answered]: sample.answer}
        best = watch.models[watch.best]
        if best in names:  # first of all: without it the others show nothing
            answers[best] = await bill.ask(best, in_the_shadow(sample.request, best))
        for name in names:
            if name != best:
                try:
                    answers[name] = await bill.ask(name, in_the_shadow(sample.request, name))
                except HeadraceError as error:
                    log.info("%s did not answer in the shadow: %s", name, type(error).__name__)
        if len(answers) < 2:
            return {}

        async def ask(request: ChatRequest) -> str:
            return await bill.ask(best, in_the_shadow(request, best))

        try:
            return await self._grader.grade(as_text(sample.request), answers, best, ask)
        except SystemExit as left:  # as a script's own end does; the server is not to end with it
            raise RuntimeError("the grader exits") from left

    def _tell(self, sample: Sample, found: dict[str, float]) -> None:
        models = sample.watch.models
        scores = np.full(len(models), np.nan)
        chances = dict(zip(models, sample.good.tolist(), strict=True))
        for model, score in found.items():
            if model in chances and 0 <= score <= 1:
                scores[models.index(model)] = score
                self._keep(Score(sample.id, model, float(score), "shadow", time.time(), chances))
        if np.isnan(scores[sample.watch.best]):
            self.dropped += 1
            return
        sample.watch.scored(sample.good, scores, sample.answered if sample.promised else NOT_PROMISED)
        self._told.add(sample.watch)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(_TELL_SECONDS, self._tell_learnt)

    def _tell_learnt(self) -> None:
        self._telling = None
        for watch in self._told:
            self._learnt(watch)
        self._told.clear()


class _Bill:
    """What one sample has cost so far."""

    def __init__(self, ask: Asked) -> None:
        self.cost = 0.0
        self._ask = ask

    async def ask(self, model: str, request: ChatRequest) -> str:
        answered = await self._ask(model, request)
        self.cost += answered.cost
        return answered.text
