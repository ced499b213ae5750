"""Which routed answers are scored in the shadow, and how models are asked there."""

from __future__ import annotations

import secrets
import time

import numpy as np
from numpy.typing import NDArray
from starlette.types import Scope

from headrace.gateway.asking import Asking
from headrace.gateway.callers import Caller
from headrace.gateway.keys import KeyLimits
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.request_log import RequestRecord
from headrace.gateway.routed.accounts import Accounts
from headrace.gateway.routed.attempt import is_broken
from headrace.gateway.routed.execution import Execution
from headrace.gateway.routed.member import Member, cost_of
from headrace.gateway.routed.need import need_of
from headrace.gateway.routed.route import Route
from headrace.gateway.shadow.feedback import Given
from headrace.gateway.shadow.sample import Answered, Sample
from headrace.models.answer import Text
from headrace.routing.budget import Budgets
from headrace.routing.watch import Watch

NOBODY = "(shadow)"
"""Who pays for the shadow in the ledger: no key can have this name."""
_MOST_TOKENS = 4096
"""Of an answer in the shadow where the request sets no bound."""
_GRADER_TOKENS = 250
"""Of a grader's instructions, and of what it writes."""


async def ask_in_the_shadow(member: Member, request: ChatRequest, budgets: Budgets) -> Answered:
    """The model's answer, computed in gaps that clients leave. Raises HeadraceError."""
    if request.max_tokens is None and request.max_completion_tokens is None:
        request.max_completion_tokens = _MOST_TOKENS
    need, price = need_of(request), member.price_now()
    scope: Scope = {"type": "http", "path": "/shadow", "headers": [], "headrace.background": True}
    asking = Asking(scope, Caller(NOBODY, KeyLimits()), RequestRecord.of(scope), request, "shadow-")
    expected = member.tokens(need)
    most = price.cost(member.most_input(need), 0, member.most_output(need, expected))
    accounts = Accounts(budgets, f"shadow-{secrets.token_hex(8)}", NOBODY)
    accounts.reserve_cost(0, most)
    cost = 0.0
    usage = None
    member.began(time.monotonic(), expected)
    try:
        pieces: list[str] = []
        async with member.answer(asking, counted=False) as running:
            try:
                async for _, parts, _, _ in running.run:
                    pieces += [part.text for part in parts if isinstance(part, Text)]
            finally:
                usage = running.run.usage()
                cost = cost_of(price, usage)
        member.answered(time.monotonic())  # once: the circuit weighs failures against it
    except BaseException as error:
        (member.failed if is_broken(error) else member.said_nothing)(time.monotonic(), error)
        raise
    finally:
        member.ended(time.monotonic(), expected, usage)
        accounts.settle(0, cost)
    return Answered("".join(pieces), cost)


def sample_of(execution: Execution, watch: Watch) -> Sample | None:
    """A routed answer that may be scored; None for one that was not given in full, or is not one text."""
    route, text = execution.route, execution.text
    request = route.asking.request
    if text is None or not isinstance(request, ChatRequest) or len(execution.spoken) != 1:
        return None
    (speaker,) = execution.spoken
    if not speaker.ended or not route.prices.keys() >= set(watch.models):  # not all are this key's to ask
        return None
    column = route.rule.columns[speaker.name]
    will_do = [route.candidates[name].will_do for name in watch.models]
    return Sample(
        id=route.asking.record.id,
        watch=watch,
        request=request,
        answer=text,
        answered=column,
        promised=route.wants.quality == watch.quality and column == will_do.index(True),
        good=_good(route, watch),
        grading=_grading(route, watch),
        costs=[route.candidates[name].cost for name in watch.models],
    )


def _grading(route: Route, watch: Watch) -> float:
    """The best model reads the prompt and every answer, and writes a mark for each."""
    best, answers = route.candidates[watch.models[watch.best]], len(watch.models)
    prompt = best.input_tokens + answers * best.output_tokens + _GRADER_TOKENS
    return route.prices[best.name].cost(prompt, 0, _GRADER_TOKENS)


def given_of(execution: Execution, watch: Watch) -> Given:
    """The answer as its client may score it."""
    route = execution.route
    column = route.rule.columns[execution.spoken[0].name]
    return Given(route.asking.record.id, watch, column, _good(route, watch))


def _good(route: Route, watch: Watch) -> NDArray[np.float64]:
    return np.array([route.candidates[name].good for name in watch.models])
