"""Which model shall answer a request: everything that is known of each, handed to a policy."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from starlette.types import Scope

from headrace.errors import RequestError
from headrace.gateway.asking import Asking
from headrace.gateway.callers import Caller
from headrace.gateway.errors import UnavailableError
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.routed.accounts import SOON, Accounts
from headrace.gateway.routed.attempt import is_elsewhere
from headrace.gateway.routed.member import Foreseen, Member, Refusal
from headrace.gateway.routed.need import Need, need_of
from headrace.gateway.routed.route import Route
from headrace.gateway.routed.rule import Rule
from headrace.routing.budget import Budgets
from headrace.routing.candidate import NOT_ALLOWED, Candidate, over_budget, too_dear, too_short
from headrace.routing.ledger import shown
from headrace.routing.pace import paced
from headrace.routing.policies import Cheapest
from headrace.routing.policy import NoModelError, Plan
from headrace.routing.pricing import RemotePrice, nano
from headrace.routing.quality import Judged, Quality
from headrace.routing.wants import Wants, wants_of

_HEADERS = b"x-headrace-"
_NO_PREDICTION = Foreseen(1, 0.0, 0.0, 0.0)


class Decider:
    """Decides; runs nothing."""

    def __init__(self, members: Mapping[str, Member], quality: Quality, budgets: Budgets):
        self._members = members
        self._quality = quality
        self._budgets = budgets

    async def decide(self, asking: Asking, rule: Rule) -> Route:
        """Raises RequestError: what is asked for cannot be had, or not now."""
        request = asking.request
        wants = wants_of(_headers(asking.scope), request.headrace).or_else(rule.table.defaults)
        allowed = _allowed(rule, wants, asking.caller)
        need = need_of(request, one_model=rule.named)
        judged = self._judge(rule, need.text, wants.quality or 1.0)
        exact = wants.first_token is not None or rule.table.hedge is not None
        left = self._budgets.left(asking.caller.name, time.time())
        candidates: dict[str, Candidate] = {}
        foreseen: dict[str, Foreseen] = {}
        prices = {name: self._members[name].price_now() for name in allowed}
        for name in rule.models:
            if name not in allowed:
                candidates[name] = _refused(self._members[name], judged[name])
                continue
            foreseen[name], candidates[name] = await self._candidate(
                self._members[name],
                judged[name],
                need,
                request,
                prices[name],
                exact=exact,
                left=left,
                caller=asking.caller.name,
                named=rule.named,
            )
        if rule.table.pace:
            candidates = paced(candidates, self._budgets.in_pace(asking.caller.name, time.time()))
        plan = _checked(rule, wants, candidates)
        identity = secrets.token_hex(12)
        return Route(
            id=identity,
            rule=rule,
            asking=asking,
            need=need,
            wants=wants,
            candidates=candidates,
            foreseen=foreseen,
            prices=prices,
            plan=plan,
            best=self._quality.best(rule.models),
            accounts=Accounts(self._budgets, identity, asking.caller.name, wants.cost),
        )

    def _judge(self, rule: Rule, text: str, quality: float) -> Mapping[str, Judged]:
        slack = None
        if rule.watch is not None:
            slack = rule.watch.slack_for(quality, self._quality.slack(quality, rule.models))
        return self._quality.judge(text, quality, slack, rule.models)

    async def _candidate(
        self,
        member: Member,
        judged: Judged,
        need: Need,
        request: ChatRequest | CompletionRequest,
        price: RemotePrice,
        *,
        exact: bool,
        left: int | None,
        caller: str,
        named: bool,
    ) -> tuple[Foreseen, Candidate]:
        refusal = None
        try:
            seen = await member.foresee(need, request, exact)
        except RequestError as error:
            if named or not is_elsewhere(error):
                raise
            too_long = error.code == "context_length_exceeded"
            seen, refusal = _NO_PREDICTION, Refusal(too_short(member.context_length or 0))
            if not too_long:
                refusal = Refusal(f"no way to ask it ({error})")
        input_tokens = -(-seen.input_tokens // need.prompts)
        refusal = refusal or _refusal(member, need, input_tokens, named=named)
        most_output = member.most_output(need, input_tokens)
        output = member.lengths.expected(need.cues, most_output) * need.sequences
        most_input = max(seen.input_tokens, member.most_input(need))
        most_cost = price.cost(most_input, 0, member.most_output(need, 1) * need.sequences)
        if refusal is None and left is not None and nano(most_cost) > left:
            refusal = self._shortage(caller, nano(most_cost))
        return seen, Candidate(
            name=member.name,
            tier=member.tier,
            good=judged.good,
            spread=judged.spread,
            will_do=judged.will_do,
            input_tokens=seen.input_tokens,
            output_tokens=output,
            cost=price.cost(seen.input_tokens, 0, output),
            most_cost=most_cost,
            first_token=seen.first_token,
            per_token=seen.per_token,
            refused="" if refusal is None else refusal.why,
            last=refusal is not None and refusal.last,
            wait=0.0 if refusal is None else refusal.wait,
            first_token_by=seen.first_token_by,
        )

    def _shortage(self, caller: str, most: int) -> Refusal | None:
        """Which budget has no room for what it may cost; open requests may give some back soon."""
        short = self._budgets.shortage(caller, most, time.time())
        if short is None:
            return None
        if short.never:
            return Refusal(too_dear(shown(short.limit), shown(most)))
        held = shown(short.held) if short.soon else ""
        left = shown(max(0, short.left))
        return Refusal(over_budget(short.budget, left, shown(most), held), SOON if short.soon else 0.0)


def _refusal(member: Member, need: Need, input_tokens: int, *, named: bool) -> Refusal | None:
    """Why it cannot be used; one that a request names says itself what it cannot do."""
    now = time.monotonic()
    return member.not_now(input_tokens, now) if named else member.refusal(need, input_tokens, now)


def _allowed(rule: Rule, wants: Wants, caller: Caller) -> frozenset[str]:
    """The models that may answer. Raises RequestError, 404, for one that the policy does not have."""
    names = rule.models if wants.models is None else wants.models
    for name in names:
        if name not in rule.models:
            raise RequestError(
                f"'models': {rule.name} has no model {name!r:.130}; it has {', '.join(rule.models)}.",
                "headrace.models",
                status=404,
                code="model_not_found",
            )
    return frozenset(name for name in names if caller.may_ask(name) or caller.may_ask(rule.name))


def _refused(member: Member, judged: Judged) -> Candidate:
    return Candidate(
        member.name, member.tier, judged.good, judged.spread, judged.will_do, 0, 0.0, 0.0, 0.0, 0.0, 0.0,
        refused=NOT_ALLOWED,
    )  # fmt: skip


def _checked(rule: Rule, wants: Wants, candidates: Mapping[str, Candidate]) -> Plan:
    """The policy's plan; the cheapest's instead of one that fails, or that names what it must not."""
    every = list(candidates.values())
    try:
        plan = rule.policy.plan(wants, every.copy())  # it may do with the list what it likes
        if _can_be_followed(plan, wants, every):
            return plan
        rule.mishaps.happened(rule.name, "made no plan that can be followed:", plan)
    except NoModelError as error:
        if error.wait > 0:
            raise UnavailableError(
                str(error), status=error.status, code=error.code or "", retry_after=max(1, round(error.wait))
            ) from None
        raise
    except RequestError:
        raise
    except (Exception, SystemExit) as error:
        rule.mishaps.happened(rule.name, "failed with", error, error)
    plan = Cheapest(rule.table).plan(wants, every)
    return replace(plan, why=f"{plan.why}; {rule.name} failed")


def _can_be_followed(plan: Plan, wants: Wants, candidates: Sequence[Candidate]) -> bool:
    """A policy of the user's may give anything."""
    if not isinstance(plan, Plan):
        return False
    able = {
        each.name
        for each in candidates
        if (not each.refused or each.last) and (wants.cost is None or each.most_cost <= wants.cost)
    }
    order, hedge_after = plan.order, plan.hedge_after
    return (
        0 < len(order) == len(set(order))
        and set(order) <= able
        and isinstance(plan.why, str)
        and (hedge_after is None or hedge_after >= 0)
        and (plan.accept is None or plan.accept >= 0)
        and 1 <= plan.steps <= len(order)
    )


def _headers(scope: Scope) -> dict[str, str]:
    """Those that may ask something of the route."""
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name.startswith(_HEADERS)
    }
