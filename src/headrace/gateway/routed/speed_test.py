"""How long local models' tokens take, by a few short requests when the server has nothing else to do.

Before clients have shown it, this says what a model costs, rather than the size of its weights; and the
fleet's predictions of first tokens learn from these requests as from any.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from headrace.backends.sampling import SamplingParams
from headrace.errors import HeadraceError
from headrace.gateway.routed.local_member import LocalMember
from headrace.gateway.routed.routes import Routes
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway
from headrace.worker.messages import Submit

log = logging.getLogger("headrace.gateway")

_FEW_TOKENS, _MANY_TOKENS = 16, 96
"""Of a prompt. The first one has few: it tells how many a short test can have, and touches the weights."""
_ANSWER_TOKENS, _FEWEST_ANSWER_TOKENS = 25, 4
_PART_SECONDS = 0.1
"""That a prompt, and an answer, should take."""
_ROUNDS = 2
"""The faster one counts: what disturbs a test only makes it slower."""
_LEAST_URGENT = 2**31 - 1
_AGAIN_SECONDS, _MOST_SECONDS = 0.1, 60.0
"""After which it is tried again, at first and at most."""


class _Took(NamedTuple):
    """Seconds."""

    first_token: float
    per_token: float


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
    task = asyncio.create_task(_test_all(gateway, local))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


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
        tokens = min(_FEW_TOKENS, served.context_length // 2)
        took = [await _ask(gateway, served, tokens)]
        if took[0] is not None:
            at_once = round(tokens * _PART_SECONDS / max(took[0].first_token, 1e-6))
            tokens = min(max(tokens, at_once), _MANY_TOKENS, served.context_length // 2)
            took = [await _ask(gateway, served, tokens) for _ in range(_ROUNDS)]
    except HeadraceError as error:
        log.info("the speed of %s cannot be tested: %s", member.name, error)
        return False
    undisturbed = [each for each in took if each is not None]
    if len(undisturbed) < _ROUNDS:
        return False
    first_token, per_token = map(min, zip(*undisturbed, strict=True))
    member.took_alone(tokens, first_token, per_token, time.monotonic())
    return True


async def _ask(gateway: Gateway, served: ServedModel, tokens: int) -> _Took | None:
    """A prompt of so many tokens. None where somebody else is served, too."""
    if _busy(gateway):
        return None
    draw = random.Random(tokens)
    submit = Submit(
        f"speed-test-{secrets.token_hex(12)}",
        [draw.randrange(served.prompter.vocab_size) for _ in range(tokens)],
        max_tokens=min(_ANSWER_TOKENS, served.context_length - tokens),
        sampling=SamplingParams(),
        ignore_eos=True,
        priority=_LEAST_URGENT,
        use_prefix_cache=False,
    )
    began = time.monotonic()
    first_at = last_at = 0.0
    further = 0
    async with aclosing(served.engine.submit(submit)) as stream:
        async for event in stream:
            if _busy(gateway):
                return None
            if not event.token_ids:
                continue
            last_at = time.monotonic()
            if not first_at:
                first_at = last_at
                continue
            further += len(event.token_ids)
            if further >= _FEWEST_ANSWER_TOKENS and last_at - first_at > _PART_SECONDS:
                break
    return _Took(first_at - began, (last_at - first_at) / further) if further else None


def _busy(gateway: Gateway) -> bool:
    """Whether a model that runs here is asked, or about to be."""
    rooms = map(gateway.admission.room, gateway.models)
    return any(room.running or room.held for room in rooms)
