"""Which replica a request goes to, and whether another one computes its prompt."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from headrace.engine.block_digest import chain, root_digest
from headrace.engine.request import PrefixNamespace
from headrace.fleet.balance import Ask, Balancer, Policy, Prediction
from headrace.fleet.replica import Replica
from headrace.fleet.step_time import StepTime
from headrace.fleet.stream import Stream

log = logging.getLogger("headrace.fleet")

LEAST_HANDOFF = 256
"""Tokens to compute from which a prompt is worth handing over; fewer take a step, wherever it is computed."""
_ANY_MACHINE = StepTime(base=0.004, row=0.00025, context=1e-8)
"""A first guess. What a replica then takes corrects it, and only how replicas compare matters."""


class Placement(NamedTuple):
    """Where a request goes."""

    replica: Replica
    prefiller: Replica | None = None
    """Who computes its prompt; None for the replica itself."""
    handoff_id: str = ""


class Dispatcher:
    """Feeds the balancer with what becomes of requests, and adds roles to its choices."""

    def __init__(
        self,
        budget: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        policy: Policy = Policy.PREDICTED_TTFT,
        step_time: StepTime = _ANY_MACHINE,
        least_handoff: int = LEAST_HANDOFF,
    ) -> None:
        """`budget` is the most tokens that a worker's step computes; the rest is for simulations."""
        self._budget = budget
        self._clock = clock
        self._step_time = step_time
        self._least_handoff = least_handoff
        self._balancer = Balancer(policy)
        self._handoffs = itertools.count()

    def ready(self, replica: Replica) -> None:
        """The replica takes requests, and has nothing to do yet."""
        self._balancer.add(replica.name, self._step_time, self._budget)

    def gone(self, replica: Replica) -> None:
        """The replica takes no requests any more, and has none."""
        self._balancer.remove(replica.name)

    def cache_changed(self, replica: Replica, stored: Sequence[bytes], evicted: Sequence[bytes]) -> None:
        """What a replica's prefix cache has stored and given up."""
        self._balancer.cache_events(replica.name, stored, evicted)

    def place(self, stream: Stream, ready: Iterable[Replica]) -> Placement | None:
        """Chooses among the replicas that are ready; None where there is none."""
        replicas = {replica.name: replica for replica in ready}
        if not replicas:
            return None
        # One that is to compute prompts only answers, too, where there is no other.
        answering = _that_go_on(
            stream, {n: r for n, r in replicas.items() if r.role != "prefill"} or replicas
        )
        now = self._clock()
        ask = _ask(stream, needs_digests=len(replicas) > 1)
        chosen = self._balancer.choose(ask, answering, now)
        placement = self._handed_over(stream, ask, chosen, replicas, answering, now)
        if placement is None:
            self._balancer.dispatched(stream.id, ask, chosen, now)
            placement = Placement(replicas[chosen.replica])
        return placement

    def first_token_in(self, ask: Ask, ready: Iterable[Replica]) -> float | None:
        """Predicted seconds to the first token of a request that came now; None where no replica is ready."""
        names = [replica.name for replica in ready if replica.role != "prefill"]
        return self._balancer.choose(ask, names, self._clock()).ttft if names else None

    def began(self, request_id: str) -> None:
        """The request has its first token, or the handoff's prompt is computed."""
        self._balancer.first_token(request_id, self._clock())

    def ended(self, request_id: str) -> None:
        """The request or handoff has ended, however."""
        self._balancer.finished(request_id, self._clock())

    def _handed_over(
        self,
        stream: Stream,
        ask: Ask,
        chosen: Prediction,
        replicas: dict[str, Replica],
        answering: dict[str, Replica],
        now: float,
    ) -> Placement | None:
        """None where whoever answers computes the prompt, too."""
        if ask.tokens - chosen.cached_tokens < self._least_handoff or not ask.digests:
            return None
        able = [n for n, r in replicas.items() if r.role == "prefill" and n not in answering]
        able = [name for name in able if _may_hand_over(replicas[name], replicas[chosen.replica])]
        if not able:
            return None
        ask = ask._replace(answers=False)
        prefill = self._balancer.choose(ask, able, now)
        if replicas[chosen.replica].role == "both" and chosen.ttft <= prefill.ttft:
            return None
        handoff_id = f"handoff-{next(self._handoffs)}"
        self._balancer.dispatched(handoff_id, ask, prefill, now)
        rest = Ask(1)
        to = self._balancer.choose(
            rest, [n for n, r in answering.items() if _may_hand_over(replicas[prefill.replica], r)], now
        )
        self._balancer.dispatched(stream.id, rest, to, now)
        return Placement(replicas[to.replica], replicas[prefill.replica], handoff_id)


def _that_go_on(stream: Stream, answering: dict[str, Replica]) -> dict[str, Replica]:
    """Those that go on with a begun stream to the bit, where there are any."""
    if not stream.output:
        return answering
    same = {n: r for n, r in answering.items() if r.ready and r.ready.fingerprint == stream.fingerprint}
    if not same:
        log.warning("%s goes on at a worker that may compute it otherwise", stream.id)
    return same or answering


def _ask(stream: Stream, *, needs_digests: bool) -> Ask:
    asked, tokens = stream.message, stream.tokens
    if not needs_digests or not asked.use_prefix_cache or asked.prompt_logprobs >= 0:
        return Ask(len(tokens))
    return ask_of(tokens, PrefixNamespace(stream.model, asked.adapter, asked.salt))


def ask_of(tokens: Sequence[int], namespace: PrefixNamespace) -> Ask:
    """What the balancer is told of a prompt that may use the prefix cache."""
    return Ask(len(tokens), list(chain(root_digest(namespace), tokens)))


def _may_hand_over(prefiller: Replica, replica: Replica) -> bool:
    """Whether blocks of the one are good for the other."""
    if prefiller is replica or prefiller.ready is None or replica.ready is None:
        return False
    schemes = {ready.transfer.partition(":")[0] for ready in (prefiller.ready, replica.ready)}
    if len(schemes) > 1 or "" in schemes:  # a socket of this host's is out of reach for others
        return False
    return prefiller.ready.fingerprint == replica.ready.fingerprint
