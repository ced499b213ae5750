"""A request as the engine sees it: token ids in, and what ends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headrace.backends.sampling import SamplingParams
from headrace.backends.step import Float32, TopLogprobs, Yield
from headrace.engine.constraint import Matcher


class PrefixNamespace(NamedTuple):
    """Requests share cached prefixes only within one namespace."""

    model: str
    adapter: str = ""
    salt: str = ""
    """The request's `cache_salt`: who does not know it cannot probe what others sent."""
    media: str = ""
    """Digest of images or audio in the prompt, whose placeholder tokens alone would look equal."""


class FinishReason(str, Enum):
    """Why a request ended."""

    STOP = "stop"
    """An end-of-text token, a stop string found by the worker, or an output that its constraint completes."""
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    """Its constraint could not be followed any further; the output says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, one continuation."""

    id: str
    prompt: tuple[int, ...]
    """At least one token."""
    max_tokens: int
    """At least 1, or 0 to sample nothing; the worker has already cut it to what the context allows."""
    namespace: PrefixNamespace
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the request; the token itself is reported as the last one."""
    top_logprobs: int = -1
    """As in a step plan: -1 for none."""
    priority: int = 0
    """Lower runs first; equal priorities by arrival."""
    use_prefix_cache: bool = True
    """False neither looks for nor shares a cached prefix."""
    cache_output: bool = True
    """False leaves the prompt's full blocks alone to the cache: no prompt will ever contain the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, addend to its logit); tokens are distinct."""
    min_tokens: int = 0
    """No stop token can come before there are so many tokens, unless a constraint allows nothing else."""
    constraint: Matcher | None = None
    """What the output must match; it follows this request alone."""
    prompt_logits: bool = False
    """Report the logits of every prompt position that is computed; for measurements and tests."""
    prompt_logprobs: int = -1
    """As `top_logprobs`, of the token that follows each prompt position that is computed, but the last."""
    embed: bool = False
    """Report the hidden state of every prompt position that is computed, and end."""
    prefill_only: bool = False
    """End when the whole prompt is computed; nothing is sampled."""
    importing: bool = False
    """Blocks are filled from elsewhere: once it has them it computes nothing before its import ends."""
    exporting: bool = False
    """Blocks are read to be sent on: they stay, past the request's end too, until its export ends."""
    output: tuple[int, ...] = ()
    """Tokens it was given elsewhere, fewer than `max_tokens`: the request goes on after them, as if here."""

    @property
    def samples(self) -> bool:
        """Whether its last token yields a next one."""
        return not (self.embed or self.prefill_only)

    @property
    def prompt_yield(self) -> Yield | None:
        """What its prompt positions yield; no more than one thing."""
        if self.embed:
            return Yield.HIDDEN
        if self.prompt_logprobs >= 0:
            return Yield.SCORE
        return Yield.LOGITS if self.prompt_logits else None


@dataclass(frozen=True, slots=True)
class Output:
    """What one step brought for one request."""

    id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    cached_tokens: int
    """Prompt tokens found in the prefix tree instead of computed, when first admitted."""
    logprobs: tuple[TopLogprobs, ...] = ()
    """One for each of `token_ids` where the request asked, else empty."""
    prompt_logits: Float32 | None = None
    """[n, vocab] logits of the n prompt positions that this step computed, where the request asked."""
    logits_start: int = 0
    """The position of the first of them."""
    prompt_logprobs: tuple[TopLogprobs, ...] = ()
    """Of the tokens that follow the prompt positions that this step computed, where the request asked."""
    hidden: Float32 | None = None
    """[n, width] hidden states of the prompt positions that this step computed, where the request asked."""
    error: str = ""
    """Why it ended with an error."""
