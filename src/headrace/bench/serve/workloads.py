"""What is asked of the server: random prompts, prompts that share a beginning, conversations, traces.

Prompts are token ids drawn at random, so that their lengths are exact whatever the model's tokenizer; a
conversation is text, for it grows by the server's own answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from headrace.bench.serve.traces import BLOCK_TOKENS, TracedRequest

FIRST_TOKEN = 100
"""Ids below are left out: many vocabularies begin with control tokens."""
_NOUNS = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community name"
)
"""Each is one token in the vocabularies of today's models, the space before it included."""

Kind = Literal["random", "shared-prefix", "multi-turn"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: token ids to continue, or a conversation to answer."""

    prompt: Sequence[int] | Sequence[dict[str, str]]
    max_tokens: int
    chat: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """Requests of which each needs the answer to the one before."""

    turns: int
    asks: Generator[Ask, str, None]
    """Yields requests and is sent each one's answer."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths in tokens; equal settings make equal prompts."""

    kind: Kind = "random"
    input_len: int = 256
    """Of a prompt; of what follows the prefix; in words, of a turn of a conversation."""
    output_len: int = 64
    prefix_len: int = 1024
    groups: int = 1
    """How many prefixes there are; requests take them in turn."""
    turns: int = 4
    vocab_size: int = 10_000
    """Token ids are below it."""
    seed: int = 0

    def sessions(self, requests: int) -> Iterator[Session]:
        """Sessions of `requests` requests in all; the last conversation may be cut short."""
        draw = self._drawer(self.seed)
        if self.kind == "multi-turn":
            rng, words = np.random.default_rng(self.seed), _NOUNS.split()
            for left in range(requests, 0, -self.turns):
                turns = min(left, self.turns)
                texts = [" ".join(rng.choice(words, self.input_len)) for _ in range(turns)]
                yield Session(turns, _conversation(texts, self.output_len))
            return
        shared = self.kind == "shared-prefix"
        prefixes = [draw(self.prefix_len) for _ in range(self.groups)] if shared else [[]]
        for index in range(requests):
            prompt = prefixes[index % len(prefixes)] + draw(self.input_len)
            yield Session(1, _single(Ask(prompt, self.output_len)))

    def traced(self, trace: Iterable[TracedRequest]) -> Iterator[tuple[float, Session]]:
        """The trace's requests with their times of arrival; blocks of equal ids hold equal tokens."""
        draw = self._drawer(self.seed)
        for request in trace:
            tokens: list[int] = []
            for block in request.blocks:
                tokens += self._drawer(self.seed, block)(BLOCK_TOKENS)
            prompt = tokens[: request.input_len] if request.blocks else draw(request.input_len)
            yield request.arrival, Session(1, _single(Ask(prompt, request.output_len)))

    def _drawer(self, *seed: int) -> Callable[[int], list[int]]:
        rng = np.random.default_rng(seed)

        def draw(count: int) -> list[int]:
            tokens: list[int] = rng.integers(FIRST_TOKEN, self.vocab_size, count).tolist()
            return tokens

        return draw


def _single(ask: Ask) -> Generator[Ask, str, None]:
    yield ask


def _conversation(texts: Sequence[str], output_len: int) -> Generator[Ask, str, None]:
    messages: list[dict[str, str]] = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        answer = yield Ask(messages, output_len, chat=True)
        messages.append({"role": "assistant", "content": answer})


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Times of arrival in seconds of a Poisson process of `rate` arrivals a second, without end."""
    rng = np.random.default_rng(seed)
    now = 0.0
    while True:
        now += rng.exponential(1 / rate)
        yield now


def fitting(
    trace: Iterable[TracedRequest], context: int | None, limit: int | None, left_out: list[TracedRequest]
) -> Iterator[TracedRequest]:
    """The first `limit` requests that the model's context holds; those it does not go to `left_out`."""

    def fits(request: TracedRequest) -> bool:
        if context is None or request.input_len + request.output_len <= context:
            return True
        left_out.append(request)
        return False

    return islice(filter(fits, trace), limit)
