"""One request while it runs: the events of its sequences in one stream, counted and timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from headrace.gateway.admission import Seat
from headrace.gateway.answering import PartsOf, Piece
from headrace.gateway.metrics import Metrics
from headrace.gateway.openai.answers import PromptTokensDetails, Usage
from headrace.gateway.prefix_report import PrefixReport
from headrace.gateway.served import EventStream, ServedModel
from headrace.models.answer import AnswerParser
from headrace.worker.messages import Submit, TokenEvent


@dataclass(slots=True)
class _Progress:
    """What is known of one sequence so far."""

    generated: int = 0
    cached: int = 0
    first_at: float = 0.0
    last_at: float = 0.0


class Run:
    """Runs a request's sequences. `arrived` is on time.monotonic's clock."""

    def __init__(
        self,
        model: ServedModel,
        submits: Sequence[Submit],
        parser: Callable[[], AnswerParser],
        choices: int,
        seat: Seat,
        metrics: Metrics,
        arrived: float,
    ):
        """`submits` has `choices` neighbours for each prompt; `parser` takes one sequence's answer apart."""
        self._model = model
        self._submits = submits
        self._choices = choices
        self._seat = seat
        self._metrics = metrics
        self._arrived = arrived
        self._progress = [_Progress() for _ in submits]
        self._parts_of = [PartsOf(parser()) for _ in submits]
        self._one: AsyncIterator[TokenEvent] | None = None
        """The only sequence's events, on which most requests wait, so that nothing else stands between."""
        self._several: AsyncIterator[tuple[int, TokenEvent]] | None = None
        self.finish_reasons: list[str] = []
        """Of the sequences that have ended, in that order."""
        self.prefix: list[PrefixReport] | UnsetType = UNSET
        """What the cache held of each prompt, where the request asked."""

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """The sequences run within the block; leaving it cancels those that have not ended."""
        name = self._model.name
        self._metrics.prompt_tokens.labels(name).inc(self._prompt_tokens)
        try:
            async with AsyncExitStack() as stack:
                streams = []
                for submit in self._submits:
                    streams.append(self._model.engine.submit(submit))
                    stack.push_async_callback(streams[-1].aclose)
                    streams[-1].when_ended(self._seat.finished)
                if len(streams) == 1:
                    self._one = aiter(streams[0])
                else:
                    self._several = await stack.enter_async_context(aclosing(merge(streams)))
                yield
        finally:
            self._metrics.generated_tokens.labels(name).inc(sum(p.generated for p in self._progress))

    def __aiter__(self) -> Run:
        return self

    async def __anext__(self) -> Piece:
        """Pieces as they come, each sequence up to its end, once it is started."""
        if self._one is not None:
            index, event = 0, await self._one.__anext__()
        else:
            assert self._several is not None
            index, event = await self._several.__anext__()
        self._count(self._progress[index], event)
        parts, reason = self._parts_of[index].take(event)
        return index, parts, event, reason

    def _count(self, progress: _Progress, event: TokenEvent) -> None:
        now = time.monotonic()
        if event.token_ids:
            if not progress.generated:
                progress.first_at = now
                self._seat.first_token()
                self._metrics.ttft.labels(self._model.name).observe(now - self._arrived)
            self._seat.generated(len(event.token_ids))
            progress.generated += len(event.token_ids)
            progress.last_at = now
        progress.cached = max(progress.cached, event.cached_tokens)
        if event.finish_reason is not None:
            self.finish_reasons.append(event.finish_reason)
            self._metrics.duration.labels(self._model.name).observe(now - self._arrived)
            if progress.generated > 1:
                per_token = (progress.last_at - progress.first_at) / (progress.generated - 1)
                self._metrics.tpot.labels(self._model.name).observe(per_token)

    @property
    def ttft(self) -> float | None:
        """Seconds from the arrival to the first token of any sequence; None before that."""
        firsts = [progress.first_at for progress in self._progress if progress.generated]
        return min(firsts) - self._arrived if firsts else None

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(submit.prompt) for submit in self._submits[:: self._choices])

    def usage(self) -> Usage:
        """Tokens so far, over all sequences; a prompt counts once, whatever the number of its choices."""
        prompt = self._prompt_tokens
        generated = sum(progress.generated for progress in self._progress)
        # The choices share their prompt's blocks, so what was there before is what the first one found.
        cached = sum(progress.cached for progress in self._progress[:: self._choices])
        return Usage(prompt, generated, prompt + generated, PromptTokensDetails(cached, self.prefix))


async def merge(streams: Sequence[EventStream]) -> AsyncGenerator[tuple[int, TokenEvent], None]:
    """The events of several streams as they come; the first error of any of them ends all.

    Closing the streams is left to who opened them.
    """
    queue: asyncio.Queue[tuple[int, TokenEvent | Exception | None]] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(i, stream, queue)) for i, stream in enumerate(streams)]
    try:
        running = len(pumps)
        while running:
            index, item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield index, item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    index: int,
    stream: EventStream,
    queue: asyncio.Queue[tuple[int, TokenEvent | Exception | None]],
) -> None:
    try:
        async for event in stream:
            queue.put_nowait((index, event))
    except Exception as error:
        queue.put_nowait((index, error))
    else:
        queue.put_nowait((index, None))
