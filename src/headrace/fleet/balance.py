"""Which replica computes a request: the one where it costs the least time, its own and that of others.

Its own is what it waits for what the replica was given and has not begun to answer; then for the tokens of
its prompt that the cache there lacks, at the speed that the replica has shown, in steps shared with the
streams that run; then for each token of its answer, in steps that are the longer the more streams there are.
Others are delayed, too: those that are there by its prompt, and each of their further tokens by its row;
those yet to come by its prompt, the more the busier the replica is. So a prefix is computed where it is
cached, and once more elsewhere where it would wait for longer than that takes, or crowd too many streams.

Knows no clock and no messages: times, in seconds of any clock that never goes back, are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from itertools import count
from typing import NamedTuple

from headrace.backends.cache import BLOCK_TOKENS
from headrace.fleet.prefix_picture import PrefixPicture
from headrace.fleet.step_time import StepTime

FUTURE_WEIGHT = 40.0
"""How many requests yet to come a prompt delays at a replica that does nothing but compute prompts."""
LATELY_SECONDS = 120.0
"""Over which it is told how busy a replica is with prompts."""
_MEMORY = 0.95
"""Weight of what was observed of a replica's speed before the newest observation."""
_ANSWER_MEMORY = 0.98
"""The same of the lengths of answers."""
_USUAL_STEPS = 100.0
"""Of an answer, before any was seen."""
_USUAL_SECONDS = 0.1
"""Predicted seconds of its own from which a replica's speed is more its own than the fleet's."""


class Policy(str, Enum):
    """How a replica is chosen."""

    PREDICTED_TTFT = "predicted-ttft"
    LEAST_LOADED = "least-loaded"
    """Fewest requests that have not ended; nothing is known of caches."""
    ROUND_ROBIN = "round-robin"


class Ask(NamedTuple):
    """What is known of a request before it is dispatched."""

    tokens: int
    """Of its prompt."""
    digests: Sequence[bytes] = ()
    """Of the prompt's full blocks, as `block_digest.chain` gives them; empty where it uses no cache."""
    answers: bool = True
    """It is answered where its prompt is computed, rather than handed over."""


class Prediction(NamedTuple):
    """What one replica would make of a request."""

    replica: str
    cached_tokens: int
    wait: float
    """Seconds until it can begin."""
    prefill: float
    """Seconds to compute what its cache lacks."""
    work: float
    """Of these, what it would take with no streams beside."""

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.wait + self.prefill


class _Dispatched(NamedTuple):
    replica: str
    tokens: int
    stored: Sequence[bytes]
    """Digests of the blocks that it is to add to the cache."""
    at: float
    prefill: float
    """Predicted seconds, uncorrected."""
    answers: bool


class _Stream(NamedTuple):
    request: _Dispatched
    since: float


class _Speed:
    """How long prefills took, and were predicted to take, the older the less."""

    def __init__(self) -> None:
        self.predicted = self.observed = 1e-9

    def took(self, predicted: float, seconds: float) -> None:
        self.predicted = _MEMORY * self.predicted + predicted
        self.observed = _MEMORY * self.observed + seconds


class _Replica:
    """One replica's state as the gateway sees it."""

    def __init__(self, step_time: StepTime, budget: int, fleet: _Speed):
        self.step_time = step_time
        self._fleet = fleet
        """What all replicas showed: taken for what is not known yet of this one."""
        self._speed = _Speed()
        self.budget = budget
        self.picture = PrefixPicture()
        self.waiting: dict[str, _Dispatched] = {}
        """Requests without a first token."""
        self.streams: dict[str, _Stream] = {}
        """Requests with one."""
        self.stream_context = 0
        """Prompt tokens of the streams."""
        self.free_at = 0.0
        """When all that waits is predicted to have its first token."""
        self.begun_at = 0.0
        """When the request whose turn it is began, at the earliest: at the first token before its own."""
        self.given_at = 0.0
        self._given = 0.0
        """Seconds of work dispatched up to then, the older the less; see `given`."""

    def slowness(self) -> float:
        """By how much its prefills took longer than its step time says, lately."""
        usual = self._fleet.observed / self._fleet.predicted
        mine = self._speed.observed + _USUAL_SECONDS * usual
        return min(max(mine / (self._speed.predicted + _USUAL_SECONDS), 0.01), 100.0)

    def prefill(self, cached: int, tokens: int) -> float:
        """Seconds by its step time alone."""
        return self.step_time.prefill_seconds(
            cached, tokens - cached, self.budget, len(self.streams), self.stream_context
        )

    def work(self, cached: int, tokens: int) -> float:
        """Seconds by its step time, if nothing else ran."""
        return self.step_time.prefill_seconds(cached, tokens - cached, self.budget)

    def step(self, streams: int) -> float:
        """Seconds of a step without a prompt, with so many streams; their context is as that of those now."""
        context = self.stream_context * (streams / max(len(self.streams), 1))
        return self.step_time.seconds(streams, context) * self.slowness()

    def given(self, now: float) -> float:
        """Seconds of work that it was given lately."""
        return self._given * math.exp((self.given_at - now) / LATELY_SECONDS)

    def give(self, seconds: float, now: float) -> None:
        """It was given so much more work."""
        self._given, self.given_at = self.given(now) + seconds, now

    def observed(self, predicted: float, seconds: float) -> None:
        self._speed.took(predicted, seconds)
        self._fleet.took(predicted, seconds)


class Balancer:
    """Tracks the replicas of one model, and what each has been given."""

    def __init__(self, policy: Policy = Policy.PREDICTED_TTFT):
        self.policy = policy
        self._replicas: dict[str, _Replica] = {}
        self._requests: dict[str, _Dispatched] = {}
        self._speed = _Speed()
        self._turns = count()
        self._answer_steps = _USUAL_STEPS
        """How many steps an answer takes, on average."""

    def add(self, name: str, step_time: StepTime, budget: int) -> None:
        """A replica takes requests from now on; `budget` is the most tokens that one of its steps computes.

        Of a replica that was there before, nothing is known any longer.
        """
        self.remove(name)
        self._replicas[name] = _Replica(step_time, budget, self._speed)

    def remove(self, name: str) -> None:
        """The replica, its cache and its requests are gone; nothing happens where it is not known."""
        replica = self._replicas.pop(name, None)
        if replica is not None:
            for request_id in (*replica.waiting, *replica.streams):
                del self._requests[request_id]

    def predict(self, ask: Ask, name: str, now: float) -> Prediction:
        """What the replica would make of a request that it is given now."""
        replica = self._replicas[name]
        # The last token of a prompt is computed in any case.
        cached = min(replica.picture.blocks_held(ask.digests) * BLOCK_TOKENS, ask.tokens - 1)
        slowness = replica.slowness()
        wait = max(replica.free_at - now, 0.0)
        work = replica.work(cached, ask.tokens) * slowness
        return Prediction(name, cached, wait, replica.prefill(cached, ask.tokens) * slowness, work)

    def choose(self, ask: Ask, among: Collection[str], now: float) -> Prediction:
        """The replica for a request, of those in `among`, which are known and at least one."""
        return _CHOICES[self.policy](self, ask, among, now)

    def dispatched(self, request_id: str, ask: Ask, chosen: Prediction, now: float) -> None:
        """The request, of a new id, was given to the replica."""
        replica = self._replicas[chosen.replica]
        prefill = replica.prefill(chosen.cached_tokens, ask.tokens)
        stored = ask.digests[-(-chosen.cached_tokens // BLOCK_TOKENS) :]
        request = _Dispatched(chosen.replica, ask.tokens, stored, now, prefill, ask.answers)
        self._requests[request_id] = replica.waiting[request_id] = request
        replica.picture.expect(stored)
        replica.free_at = max(replica.free_at, now) + chosen.prefill
        replica.give(chosen.work, now)

    def first_token(self, request_id: str, now: float) -> None:
        """Its prompt is computed. Nothing happens where the request is not known or was reported before."""
        request = self._requests.get(request_id)
        if request is None:
            return
        replica = self._replicas[request.replica]
        if replica.waiting.pop(request_id, None) is None:
            return
        replica.picture.settle(request.stored)
        replica.observed(request.prefill, now - max(request.at, replica.begun_at))
        replica.begun_at = now
        replica.streams[request_id] = _Stream(request, now)
        replica.stream_context += request.tokens
        self._replan(replica, now)

    def finished(self, request_id: str, now: float) -> None:
        """The request has ended, however; nothing happens where it is not known."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        replica = self._replicas[request.replica]
        if request_id in replica.streams:
            step = replica.step(len(replica.streams))
            stream = replica.streams.pop(request_id)
            replica.stream_context -= request.tokens
            if request.answers:
                steps = (now - stream.since) / step
                self._answer_steps += (1 - _ANSWER_MEMORY) * (steps - self._answer_steps)
        else:
            del replica.waiting[request_id]
            replica.picture.settle(request.stored)
            self._replan(replica, now)

    def cache_events(self, name: str, stored: Sequence[bytes], evicted: Sequence[bytes]) -> None:
        """What a replica's cache has stored and given up; nothing happens where it is not known."""
        if name in self._replicas:
            self._replicas[name].picture.changed(stored, evicted)

    @staticmethod
    def _replan(replica: _Replica, now: float) -> None:
        left = sum(request.prefill for request in replica.waiting.values())
        replica.free_at = now + left * replica.slowness()

    def _cheapest(self, ask: Ask, among: Collection[str], now: float) -> Prediction:
        def cost(prediction: Prediction) -> float:
            replica = self._replicas[prediction.replica]
            others = len(replica.streams) + len(replica.waiting)
            delayed = others + FUTURE_WEIGHT * min(replica.given(now) / LATELY_SECONDS, 1.0)
            total = prediction.ttft + delayed * prediction.work
            if ask.answers:
                alone, without, with_it = (replica.step(streams) for streams in (1, others, others + 1))
                # Those that are there have half of their answers before them.
                total += self._answer_steps * (with_it - alone + others * (with_it - without) / 2)
            return total

        return min((self.predict(ask, name, now) for name in among), key=cost)

    def _fewest(self, ask: Ask, among: Collection[str], now: float) -> Prediction:
        def load(name: str) -> tuple[int, float]:
            replica = self._replicas[name]
            return len(replica.waiting) + len(replica.streams), replica.given(now)

        return self.predict(ask, min(among, key=load), now)

    def _next(self, ask: Ask, among: Collection[str], now: float) -> Prediction:
        return self.predict(ask, sorted(among)[next(self._turns) % len(among)], now)


_CHOICES: dict[Policy, Callable[[Balancer, Ask, Collection[str], float], Prediction]] = {
    Policy.PREDICTED_TTFT: Balancer._cheapest,
    Policy.LEAST_LOADED: Balancer._fewest,
    Policy.ROUND_ROBIN: Balancer._next,
}
