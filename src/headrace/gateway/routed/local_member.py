"""A model of the fleet that this server's own workers compute."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from headrace.gateway.answering import Running
from headrace.gateway.asking import Asking
from headrace.gateway.local_answer import local_answer
from headrace.gateway.openai.answers import Usage
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.prompts import offered_tools, render_messages
from headrace.gateway.routed.member import Foreseen, Member, Outcome, Refusal
from headrace.gateway.routed.need import Need
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway
from headrace.routing.candidate import circuit_open
from headrace.routing.latency import Correction, Latency
from headrace.routing.learner import Learner
from headrace.routing.pricing import LocalPrice, RemotePrice, speeds_of
from headrace.routing.tables import ModelTable

_MILLION = 1e6
_ALWAYS = frozenset({"json", "logprobs"})
_LOADING_SECONDS = 5.0
"""A first guess of how long a model takes to load that is not there."""


class LocalMember(Member):
    """Its first token is predicted by its fleet, from what the replicas are doing and hold of the prompt."""

    goes_on = True
    tells_logprobs = True

    def __init__(
        self,
        name: str,
        table: ModelTable,
        gateway: Gateway,
        *,
        workers: int,
        weights_bytes: int,
        prices: list[LocalPrice],
    ):
        """`workers`: those that its cost per hour pays for. Its price joins `prices`, all local models'."""
        super().__init__(name, table)
        self._gateway = gateway
        prefill, decode = speeds_of(weights_bytes)
        self._price = LocalPrice(table.cost_per_hour, workers, prefill, decode, prices)
        prices.append(self._price)
        self._speed = Latency()
        self._correction = Correction()
        """Of the first token, once the request's turn has come."""
        self._waits = Correction()

    @property
    def _served(self) -> ServedModel | None:
        return self._gateway.models.get(self.name)

    @property
    def abilities(self) -> frozenset[str]:
        if self.table.abilities is not None:
            return frozenset(self.table.abilities)
        served = self._served
        return _ALWAYS | {"tools"} if served is None or served.prompter.knows_tools else _ALWAYS

    @property
    def context_length(self) -> int | None:
        served = self._served
        return self.table.context_length if served is None else served.context_length

    @property
    def identity(self) -> Sequence[str] | None:
        served = self._served
        return None if served is None else (self.table.source, served.fingerprint or "")

    @property
    def learners(self) -> Mapping[str, Learner]:
        return {
            **super().learners,
            "prices": self._price,
            "speeds": self._speed,
            "first tokens": self._correction,
            "waits": self._waits,
        }

    async def foresee(self, need: Need, request: ChatRequest | CompletionRequest, exact: bool) -> Foreseen:
        """Exactly: with the prompt's tokens, and what caches hold of them."""
        served = self._served
        tokens = self.tokens(need)
        per_token = self._speed.per_token(self.in_flight)
        if served is None:
            return Foreseen(tokens, _LOADING_SECONDS, _LOADING_SECONDS, per_token, self.in_flight)
        prompt: list[int] | int = tokens
        if exact and isinstance(request, ChatRequest):
            _, prompt = await render_messages(served, request, offered_tools(request))
            tokens = len(prompt)
        within = served.engine.first_token_in(prompt, request.cache_salt or "")
        if within is None:
            return Foreseen(tokens, _LOADING_SECONDS, _LOADING_SECONDS, per_token, self.in_flight)
        return self._corrected(within, tokens, per_token)

    def _corrected(self, within: float, tokens: int, per_token: float) -> Foreseen:
        wait = self._gateway.admission.expected_wait(self.name, time.monotonic())
        return Foreseen(
            tokens,
            self._correction.corrected(within) + (self._waits.corrected(wait) if wait else 0.0),
            self._correction.by(within) + (self._waits.by(wait) if wait else 0.0),
            per_token,
            self.in_flight,
            within,
            wait,
        )

    def not_now(self, input_tokens: int, now: float) -> Refusal | None:
        served = self._served
        if served is not None and served.engine.first_token_in(1) is None:
            return Refusal(circuit_open(1), 1.0, last=True)
        return super().not_now(input_tokens, now)

    def price_now(self) -> RemotePrice:
        price = self._price
        return RemotePrice(
            price.cost(_MILLION, 0, 0), price.cost(_MILLION, _MILLION, 0), price.cost(0, 0, _MILLION)
        )

    def took_alone(self, tokens: int, first_token: float, per_token: float, now: float) -> None:
        """With nothing else running, a prompt of so many tokens took a worker so many seconds, and then each
        token of its answer."""
        self._price.alone(first_token / tokens, per_token)
        self._speed.observed(tokens, first_token, per_token, 0, now)

    def answer(self, asking: Asking, *, counted: bool) -> AbstractAsyncContextManager[Running]:
        return local_answer(self._gateway, asking, counted=counted)

    def began(self, now: float, tokens: int) -> None:
        super().began(now, tokens)
        self._price.began(now)

    def ended(self, now: float, tokens: int, usage: Usage | None) -> None:
        super().ended(now, tokens, usage)
        computed = output = 0
        if usage is not None:
            computed = usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
            output = usage.completion_tokens
        self._price.ended(now, computed, output)

    def learn(self, outcome: Outcome, now: float) -> None:
        super().learn(outcome, now)
        foreseen = outcome.foreseen
        if foreseen is None:
            return
        if foreseen.uncorrected is not None:
            self._correction.observed(foreseen.uncorrected, outcome.first_token - outcome.waited, now)
        if foreseen.uncorrected_wait:
            self._waits.observed(foreseen.uncorrected_wait, outcome.waited, now)
        self._speed.observed(
            outcome.input_tokens, outcome.first_token, outcome.per_token, foreseen.in_flight, now
        )
