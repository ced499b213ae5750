"""A model of the fleet that is served elsewhere, over HTTP."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec import Raw

from headrace.backends.sampling import SamplingParams
from headrace.gateway.admission import Seat
from headrace.gateway.answering import AnswerHead, Answering, Piece, Running
from headrace.gateway.asking import Asking
from headrace.gateway.callers import Caller
from headrace.gateway.embeddings import EmbeddingsRequest
from headrace.gateway.metrics import Metrics
from headrace.gateway.openai.answers import Usage
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.prompts import split_prompts
from headrace.gateway.remotes.errors import RemoteError
from headrace.gateway.remotes.remote import Remote
from headrace.gateway.remotes.run import RemoteRun
from headrace.gateway.routed.attempt import is_broken
from headrace.gateway.routed.member import Foreseen, Member, Outcome, Refusal
from headrace.gateway.routed.need import Need, need_of
from headrace.gateway.routed.not_now import NotNowError
from headrace.gateway.state import Gateway
from headrace.gateway.waiting_room import UNBOUNDED
from headrace.routing.candidate import lacks, rate_limited
from headrace.routing.latency import Latency
from headrace.routing.learner import Learner
from headrace.routing.pricing import RemotePrice, price_of
from headrace.routing.rate_limit import RateLimit
from headrace.routing.tables import ModelTable

log = logging.getLogger("headrace.gateway")


class RemoteMember(Member):
    """Its first token and speed are learnt from what it showed."""

    def __init__(self, name: str, table: ModelTable, gateway: Gateway, key: str | None):
        """`key` is what the remote wants to be shown. Raises ConfigError if no header can hold it."""
        super().__init__(name, table)
        self._gateway = gateway
        self._remote = Remote(name, table, key)
        self._latency = Latency()
        self._limit = RateLimit(
            time.monotonic(), table.requests_per_minute, table.tokens_per_minute, table.concurrency
        )
        price = price_of(table)
        assert isinstance(price, RemotePrice)
        self._price = price
        gateway.admission.open_room(name, UNBOUNDED)
        self._doubted = False
        self.tells_logprobs = table.api == "openai" and "logprobs" in self.abilities

    @property
    def abilities(self) -> frozenset[str]:
        return frozenset(self.table.abilities or ())

    @property
    def context_length(self) -> int | None:
        return self.table.context_length

    @property
    def identity(self) -> Sequence[str]:
        return self.table.url or "", self.table.api, self.table.upstream

    @property
    def learners(self) -> Mapping[str, Learner]:
        return {**super().learners, "speeds": self._latency}

    async def foresee(self, need: Need, request: ChatRequest | CompletionRequest, exact: bool) -> Foreseen:
        self._remote.check(request)
        tokens, others = self.tokens(need), self.in_flight
        latency = self._latency
        first = latency.first_token(tokens, others)
        return Foreseen(
            tokens, first, latency.first_token_by(tokens, others), latency.per_token(others), others
        )

    def unable(self, need: Need) -> Refusal | None:
        if not need.chat and "completions" not in self.abilities:
            return Refusal(lacks("text completions"))
        return super().unable(need)

    def not_now(self, input_tokens: int, now: float) -> Refusal | None:
        wait = self._limit.wait(now, input_tokens)
        return Refusal(rate_limited(wait), wait) if wait > 0 else super().not_now(input_tokens, now)

    def price_now(self) -> RemotePrice:
        return self._price

    @asynccontextmanager
    async def answer(self, asking: Asking, *, counted: bool) -> AsyncIterator[Running]:
        request, record, gateway = asking.request, asking.record, self._gateway
        record.id = asking.id_prefix + secrets.token_hex(12)
        record.model, record.asked = self.name, request
        prompts = [""] if isinstance(request, ChatRequest) else split_prompts(request)
        choices = request.n or 1
        seat = gateway.admission.admit(
            asking.caller,
            self.name,
            sequences=len(prompts) * choices,
            prompt_tokens=self._tokens_to_count(asking),
            priority=request.priority or 0,
            background=asking.background,
            counted=counted,
        )
        async with seat:
            record.queue_seconds = seat.queue_seconds
            async with self._remote.ask(record.id, request) as remote:
                run = record.run = RemoteAnswer(remote, seat, gateway.metrics, self.name, record.arrived)
                tokens = [list[int]() for _ in prompts]  # which they are the remote knows
                head = AnswerHead(record.id, int(time.time()), self.name, None, tokens, choices)
                texts = [prompt for prompt in prompts if isinstance(prompt, str)]
                try:
                    yield Running(head, run, _sampling(request), remote.token_bytes, texts)
                finally:
                    run.count()
                    self._doubt(remote)

    def check_embeds(self) -> None:
        """Raises RemoteError where its API has no embeddings."""
        self._remote.check_embeds()

    async def embed(
        self, request: EmbeddingsRequest, caller: Caller, expected: int, *, background: bool
    ) -> tuple[Sequence[Raw], Usage]:
        """Vectors of the request's inputs, of about so many tokens, as JSON. Raises RequestError."""
        now, gateway = time.monotonic(), self._gateway
        if (wait := self._limit.wait(now, expected)) > 0:
            raise NotNowError(self.name, Refusal(rate_limited(wait), wait))
        seat = gateway.admission.admit(caller, self.name, prompt_tokens=expected, background=background)
        usage: Usage | None = None
        async with seat:
            self.began(now, expected)
            try:
                vectors, usage = await self._remote.embed(request)
            except BaseException as error:
                (self.failed if is_broken(error) else self.said_nothing)(time.monotonic(), error)
                raise
            finally:
                self.ended(time.monotonic(), expected, usage)
            self.answered(time.monotonic())
            seat.first_token()
            seat.finished()
        gateway.metrics.prompt_tokens.labels(self.name).inc(usage.prompt_tokens)
        return vectors, usage

    def _tokens_to_count(self, asking: Asking) -> int:
        """Of the prompt, for the caller's limit of tokens; estimated, and only where there is one."""
        limited = asking.caller.allowed.tokens_per_minute is not None
        return self.tokens(need_of(asking.request)) if limited else 0

    def _doubt(self, run: RemoteRun) -> None:
        """Tells once that the remote's word on tokens is not taken."""
        if run.finish_reasons and not run.usage_believed and not self._doubted:
            self._doubted = True
            log.warning("%s tells no tokens, or impossible ones; they are estimated", self.name)

    def began(self, now: float, tokens: int) -> None:
        super().began(now, tokens)
        self._limit.take(now, tokens)

    def ended(self, now: float, tokens: int, usage: Usage | None) -> None:
        super().ended(now, tokens, usage)
        self._limit.settle(now, tokens, 0 if usage is None else usage.total_tokens)

    def answered(self, now: float) -> None:
        super().answered(now)
        self._limit.accepted()

    def failed(self, now: float, error: BaseException) -> None:
        super().failed(now, error)
        self._refused(now, error)

    def said_nothing(self, now: float, error: BaseException | None) -> None:
        super().said_nothing(now, error)
        self._refused(now, error)

    def _refused(self, now: float, error: BaseException | None) -> None:
        if isinstance(error, RemoteError) and error.status == 429:
            self._limit.refused(now, error.retry_after)

    def learn(self, outcome: Outcome, now: float) -> None:
        super().learn(outcome, now)
        if outcome.foreseen is not None:
            self._latency.observed(
                outcome.input_tokens, outcome.first_token, outcome.per_token, outcome.foreseen.in_flight, now
            )

    async def close(self) -> None:
        await self._remote.close()


class RemoteAnswer(Answering):
    """A remote's answer, counted and timed as a local one is."""

    def __init__(self, run: RemoteRun, seat: Seat, metrics: Metrics, model: str, arrived: float):
        """`arrived` is on time.monotonic's clock."""
        self._run = run
        self._seat = seat
        self._metrics = metrics
        self._model = model
        self._arrived = arrived
        self._first_at: float | None = None

    def __aiter__(self) -> RemoteAnswer:
        return self

    async def __anext__(self) -> Piece:
        piece = await self._run.__anext__()
        if self._first_at is None:
            self._first_at = time.monotonic()
            self._seat.first_token()
            asyncio.get_running_loop().call_soon(self._count_first)  # once the piece is on its way
        if piece[3] is not None:
            self._seat.finished()
            self._metrics.duration.labels(self._model).observe(time.monotonic() - self._arrived)
        return piece

    def _count_first(self) -> None:
        if self.ttft is not None:
            self._metrics.ttft.labels(self._model).observe(self.ttft)

    def usage(self) -> Usage:
        return self._run.usage()

    @property
    def ttft(self) -> float | None:
        """Seconds from the request's arrival to its first piece."""
        return None if self._first_at is None else self._first_at - self._arrived

    @property
    def finish_reasons(self) -> Sequence[str]:
        return self._run.finish_reasons

    def count(self) -> None:
        """It has ended: counts its tokens."""
        usage = self._run.usage()
        self._metrics.prompt_tokens.labels(self._model).inc(usage.prompt_tokens)
        self._metrics.generated_tokens.labels(self._model).inc(usage.completion_tokens)
        self._seat.generated(usage.completion_tokens)


def _sampling(request: ChatRequest | CompletionRequest) -> SamplingParams:
    """As far as the request says it: the rest is the remote's to know."""
    temperature = 1.0 if request.temperature is None else request.temperature
    return SamplingParams(temperature=temperature, top_p=1.0 if request.top_p is None else request.top_p)
