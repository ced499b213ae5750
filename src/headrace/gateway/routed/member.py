"""One model of the fleet, as the router sees it: what it can do, what it costs, how it has fared lately."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import HeadraceError
from headrace.gateway.answering import Running
from headrace.gateway.asking import Asking
from headrace.gateway.openai.answers import Usage
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.remotes.outgoing import MOST_TOKENS
from headrace.gateway.routed.need import Need
from headrace.gateway.routed.prompt_length import PromptLength
from headrace.routing.breaker import Breaker
from headrace.routing.candidate import circuit_open, lacks, too_short
from headrace.routing.learner import Learner
from headrace.routing.output_length import OutputLength
from headrace.routing.pricing import RemotePrice
from headrace.routing.tables import ModelTable

log = logging.getLogger("headrace.gateway")

_GUESS = 4
"""A prompt's tokens are not guessed more than so many times too high, but for rare texts."""


class Foreseen(NamedTuple):
    """What a model would make of a request now; times in seconds."""

    input_tokens: int
    first_token: float
    """At the median."""
    first_token_by: float
    """In all but few cases."""
    per_token: float
    in_flight: int = 0
    """Other requests that it was answering."""
    uncorrected: float | None = None
    """The first token after the request's turn has come, as whoever predicts it said; None: nobody did."""
    uncorrected_wait: float = 0.0
    """Until its turn, by how fast the queue moved."""


class Refusal(NamedTuple):
    """Why a model cannot be used now."""

    why: str
    wait: float = 0.0
    """Seconds after which it may be; 0 where waiting does not help."""
    last: bool = False
    """It may be tried where nothing else is left."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer went that came to its end."""

    need: Need
    foreseen: Foreseen | None
    """What was predicted; None where it was begun at another time than it was predicted for."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    """Of all sequences."""
    cut: bool
    """Some sequence would have gone on, but for its limit."""
    first_token: float
    """Seconds."""
    waited: float
    """Seconds of these until its turn came."""
    per_token: float | None
    """Seconds; None for an answer of one token."""


def cost_of(price: RemotePrice, usage: Usage) -> float:
    """What these tokens cost at this price."""
    cached = usage.prompt_tokens_details.cached_tokens
    return price.cost(usage.prompt_tokens, cached, usage.completion_tokens)


class Member(ABC):
    """Belongs to one event loop. Times are on time.monotonic's clock."""

    goes_on = False
    """Whether it can take up another model's answer in the middle."""
    tells_logprobs = False
    """Whether it can say how sure it was of each token."""

    def __init__(self, name: str, table: ModelTable):
        self.name = name
        self.table = table
        self.tier = table.tier
        self.breaker = Breaker()
        self.lengths = OutputLength()
        self.in_flight = 0
        self.prompts = PromptLength()

    # what it can do

    @abstractmethod
    async def foresee(self, need: Need, request: ChatRequest | CompletionRequest, exact: bool) -> Foreseen:
        """Predicts; `exact` where the first token's time matters, which is then worth more work.

        Raises RequestError where the request is wrong for this model.
        """

    @property
    @abstractmethod
    def abilities(self) -> frozenset[str]:
        """What it can do beside writing text."""

    @property
    @abstractmethod
    def context_length(self) -> int | None:
        """Tokens of prompt and answer; None where no limit is known."""

    def refusal(self, need: Need, input_tokens: int, now: float) -> Refusal | None:
        """Why it cannot answer this; None where it can. What it never can is told before what it may later.

        A prompt that seems too long is a guess: where nothing else is left, the model shall count.
        """
        refusal = self.unable(need) or self._too_long(input_tokens, _GUESS)
        refusal = refusal or self.not_now(input_tokens, now)
        if refusal is None and (refusal := self._too_long(input_tokens)) is not None:
            return refusal._replace(last=True)
        return refusal

    def unable(self, need: Need) -> Refusal | None:
        """What it lacks for this, now and later; None where it lacks nothing."""
        for ability in sorted(need.abilities - self.abilities):
            return Refusal(lacks(ability))
        return None

    def not_now(self, input_tokens: int, now: float) -> Refusal | None:
        """Why nothing may be sent to it for a while; None where something may."""
        if self.breaker.allows(now):
            return None
        wait = self.breaker.open_for(now)
        return Refusal(circuit_open(wait), wait, last=True)

    def _too_long(self, input_tokens: int, times: int = 1) -> Refusal | None:
        """A prompt of more than so many times its context."""
        context = self.context_length
        if context is None or input_tokens < times * context:
            return None
        return Refusal(too_short(context))

    # what it costs

    @abstractmethod
    def price_now(self) -> RemotePrice:
        """Per million tokens, at the present load."""

    def most_input(self, need: Need) -> int:
        """Tokens that the prompt can have at most."""
        most = self.prompts.most(need) + need.images * self.table.image_tokens
        return most if self.context_length is None else min(most, need.prompts * self.context_length)

    def most_output(self, need: Need, input_tokens: int) -> int:
        """Tokens of each answer at most."""
        limits = [limit for limit in (need.most_output, self.table.max_output) if limit is not None]
        if self.context_length is not None:
            limits.append(max(1, self.context_length - input_tokens))
        return min(limits, default=MOST_TOKENS)

    def tokens(self, need: Need) -> int:
        """Of the prompt, as far as can be told from its length."""
        return self.prompts.expected(need)

    # answering

    @abstractmethod
    def answer(self, asking: Asking, *, counted: bool) -> AbstractAsyncContextManager[Running]:
        """The answer, for as long as the block runs; `counted`: for the caller's limits."""

    def began(self, now: float, tokens: int) -> None:
        """A request is sent to it that is expected to take so many tokens, of prompt and answer."""
        self.in_flight += 1
        self.breaker.begin_trial(now)

    def ended(self, now: float, tokens: int, usage: Usage | None) -> None:
        """It has ended, however, and was expected to take so many; `usage`: None where it did not begin."""
        self.in_flight -= 1

    def answered(self, now: float) -> None:
        """A first token came."""
        was_open = self.breaker.open
        self.breaker.succeeded(now)
        if was_open and not self.breaker.open:
            log.warning("%s answers again", self.name)

    def failed(self, now: float, error: BaseException) -> None:
        """It failed by its own fault."""
        was_open = self.breaker.open
        self.breaker.failed(now)
        if self.breaker.open and not was_open:  # others may answer meanwhile, and nobody notice
            why = error if isinstance(error, HeadraceError) else type(error).__name__
            log.warning(
                "%s fails, and is left alone until a trial succeeds; the last failure: %s", self.name, why
            )

    def said_nothing(self, now: float, error: BaseException | None) -> None:
        """A request ended without a first token, or with a refusal, by no fault of its."""
        self.breaker.abandoned()

    def learn(self, outcome: Outcome, now: float) -> None:
        """Takes in how an answer went."""
        need = outcome.need
        self.lengths.observed(need.cues, outcome.output_tokens // need.sequences, outcome.cut)
        if outcome.input_tokens:
            self.prompts.observed(need, outcome.input_tokens)

    @property
    @abstractmethod
    def identity(self) -> Sequence[str] | None:
        """Of what answers under its name: what was learnt of others says nothing. None: not known now."""

    @property
    def learners(self) -> Mapping[str, Learner]:
        """What it learns that shall outlive the server."""
        return {"lengths": self.lengths, "prompts": self.prompts}

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Lets go of what it holds."""
