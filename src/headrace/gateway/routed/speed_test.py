"""How long local models' tokens take, by a few short requests when the server has nothing else to do.

Before clients have shown it, this says what a model costs, rather than the size of its weights; and the
fleet's predictions of first tokens learn from these requests as from any.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from headrace.backends.sampling import SamplingParams
from headrace.errors import HeadraceError
from headrace.gateway.beside import beside
from headrace.gateway.routed.local_member import LocalMember
from headrace.gateway.routed.routes import Routes
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway
from headrace.worker.messages import Submit

log = logging.getLogger("headrace.gateway")

_FIRST_PROMPT, _LONGEST_PROMPT = 16, 96
_FIRST_ANSWER, _LONGEST_ANSWER = 4, 64
"""Tokens. The first request touches the weights, and tells how long the others can be."""
_PART_SECONDS = 0.07
"""That a prompt, and an answer, should take."""
_ALIKE = 1.1
"""It is repeated until the two fastest times are alike to this factor,"""
_ENOUGH_SECONDS = 1.0
"""or so much time is spent."""
_LEAST_URGENT = 2**31 - 1
_AGAIN_SECONDS, _MOST_SECONDS = 0.1, 60.0
"""After which it is tried again, at first and at most."""


class _Took(NamedTuple):
    """Seconds from the request on. Whatever disturbs it makes both longer."""

    first_token: float
    last_token: float


@asynccontextmanager
async def speeds_tested(gateway: Gateway, routes: Routes | None) -> AsyncIterator[None]:
    """Tests local models while the block runs, one after another, once, where any of them costs something.

    No request waits for it: it begins when nobody is served here, and is given up when somebody comes.
    """
    members = {} if routes is None else routes.members
    local = [member for member in members.values() if isinstance(member, LocalMember)]
    if not any(member.table.cost_per_hour for member in local):
        yield
        return
    async with beside(_test_all(gateway, local)):
        yield


async def _test_all(gateway: Gateway, untested: list[LocalMember]) -> None:
    wait = _AGAIN_SECONDS
    while untested:
        await asyncio.sleep(wait)
        wait = min(2 * wait, _MOST_SECONDS)
        untested = [member for member in untested if not await _tested(gateway, member)]


async def _tested(gateway: Gateway, member: LocalMember) -> bool:
    """Whether the test came to its end."""
    served = gateway.models.get(member.name)
    if served is None or served.engine.first_token_in(1) is None:
        return False
    try:
        result = await _test(gateway, served)
    except HeadraceError as error:
        log.info("the speed of %s cannot be tested: %s", member.name, error)
        return False
    if result is not None:
        member.took_alone(*result, time.monotonic())
    return result is not None


async def _test(gateway: Gateway, served: ServedModel) -> tuple[int, float, float] | None:
    """Tokens of a prompt, the seconds until the first token, and those of each further one.

    None where somebody else is served, too.
    """
    room, began = served.context_length // 2, time.monotonic()
    prompt, answer = min(_FIRST_PROMPT, room), min(_FIRST_ANSWER, room)
    took = await _ask(gateway, served, prompt, answer)
    if took is None:
        return None
    each = max((took.last_token - took.first_token) / (answer - 1), 1e-6)
    prompt = min(max(prompt, round(prompt * _PART_SECONDS / took.first_token)), _LONGEST_PROMPT, room)
    answer = min(max(answer, round(_PART_SECONDS / each)), _LONGEST_ANSWER, room)
    firsts, lasts = list[float](), list[float]()
    while not (_sure(firsts) and _sure(lasts)) and (not lasts or time.monotonic() - began < _ENOUGH_SECONDS):
        took = await _ask(gateway, served, prompt, answer)
        if took is None:
            return None
        firsts.append(took.first_token)
        lasts.append(took.last_token)
    return prompt, *_divided(prompt, answer, min(firsts), min(lasts))


def _sure(times: Sequence[float]) -> bool:
    fastest = sorted(times)[:2]
    return len(fastest) == 2 and fastest[1] < _ALIKE * fastest[0]


def _divided(prompt: int, answer: int, first_token: float, last_token: float) -> tuple[float, float]:
    """Seconds until the first token, and of each further one.

    Events that were read late, all at once, say how long all took and not the answer's part: a token of an
    answer never takes less than one of a prompt.
    """
    even = last_token / (prompt + answer - 1)
    if first_token > even * prompt:
        return even * prompt, even
    return first_token, (last_token - first_token) / (answer - 1)


async def _ask(gateway: Gateway, served: ServedModel, prompt: int, answer: int) -> _Took | None:
    """A prompt and an answer of so many tokens. None where somebody else is served, too, or nothing came."""
    if _busy(gateway):
        return None
    draw = random.Random(prompt)
    submit = Submit(
        f"speed-test-{secrets.token_hex(12)}",
        [draw.randrange(served.prompter.vocab_size) for _ in range(prompt)],
        max_tokens=answer,
        sampling=SamplingParams(),
        ignore_eos=True,
        priority=_LEAST_URGENT,
        use_prefix_cache=False,
    )
    began = time.monotonic()
    first_at = last_at = 0.0
    async with aclosing(served.engine.submit(submit)) as stream:
        async for event in stream:
            if _busy(gateway):
                return None
            if event.token_ids:
                last_at = time.monotonic()
                first_at = first_at or last_at
    return _Took(first_at - began, last_at - began) if first_at else None


def _busy(gateway: Gateway) -> bool:
    """Whether a model that runs here is asked, or about to be, or the server ends."""
    rooms = map(gateway.admission.room, gateway.models)
    return gateway.admission.draining or any(room.running or room.held for room in rooms)
