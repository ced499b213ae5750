"""POST /v1/route: who would answer a request, and why, without asking anyone. And /v1/feedback beside it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.routing import Route as Path
from starlette.types import Scope

from headrace.errors import RequestError
from headrace.gateway.asking import Asking
from headrace.gateway.errors import missing
from headrace.gateway.json_endpoint import JsonEndpoint
from headrace.gateway.openai.requests import ChatMessage, ChatRequest, CompletionRequest
from headrace.gateway.request_log import RequestRecord
from headrace.gateway.route_report import whole_billionths
from headrace.gateway.routed.route import Route
from headrace.gateway.routed.routes import Routes
from headrace.gateway.shadow.feedback import Recent, feedback_routes
from headrace.gateway.state import Gateway
from headrace.routing.candidate import Candidate
from headrace.routing.store import Score


class RouteRequest(ChatRequest, kw_only=True):
    """A chat or, with a `prompt`, a text completion; as it would be sent to be answered."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None  # type: ignore[assignment]
    prompt: str | list[str | int | list[int]] | None = None


class ExplainedWants(Struct):
    """What holds for the request: what it asks for, else the policy's own."""

    quality: float | None
    max_first_token_ms: float | None
    min_tokens_per_second: float | None
    max_cost: float | None


class ExplainedCandidate(Struct):
    """What is known of one model for the request."""

    model: str
    tier: str
    chance: float
    """That its answer will be good."""
    spread: float
    """How far that may be off, for want of similar prompts."""
    will_do: bool
    """Whether that is enough for the quality."""
    input_tokens: int
    output_tokens: float
    cost: float
    most_cost: float
    first_token_ms: float
    first_token_ms_p95: float
    tokens_per_second: float | None
    refused: str | None
    """Why it cannot be used now."""


class ExplainedRoute(Struct):
    """A decision."""

    policy: str
    model: str
    """Who would answer."""
    why: str
    order: list[str]
    """Who would be tried, one after another."""
    steps: int
    """So many of them make up a cascade; 1: none."""
    accept: float | None
    """The chance from which on a cascade accepts an answer."""
    hedge_after_ms: float | None
    best: str
    """The model whose expected quality the share is of."""
    slack: float | None
    """How much less likely than the best a model may be to answer well; None: the estimates alone decide."""
    wants: ExplainedWants
    candidates: list[ExplainedCandidate]


def routing_endpoints(gateway: Gateway) -> list[Path]:
    """Every path of it. Where nothing is routed they are there, too, and say so."""
    nobody = Recent()

    def recent() -> Recent:
        return gateway.router.recent if isinstance(gateway.router, Routes) else nobody

    def keep(score: Score) -> None:
        if isinstance(gateway.router, Routes):
            gateway.router.store.scored(score)

    return [*_route_endpoint(gateway), *feedback_routes(gateway, recent, keep)]


def _route_endpoint(gateway: Gateway) -> list[Path]:

    async def work(scope: Scope, body: RouteRequest) -> ExplainedRoute:
        caller, router = gateway.callers.identify(scope), gateway.router
        if not isinstance(router, Routes) or not router.covers(body.model):
            known = router.open_to(caller) if isinstance(router, Routes) else []
            there = ", ".join(known) or "none; headrace.toml has no [models]"
            raise RequestError(
                f"Nothing is routed under the name {body.model!r:.200}; there are: {there}.",
                "model",
                status=404,
                code="model_not_found",
            )
        router.check(caller, body.model)
        asking = Asking(scope, caller, RequestRecord.of(scope), _request(body), "route-")
        return explained(await router.decide(asking))

    return [Path("/v1/route", JsonEndpoint(gateway, RouteRequest, work), methods=["POST"])]


def explained(route: Route) -> ExplainedRoute:
    """The decision in words for a client."""
    plan, wants, watch = route.plan, route.wants, route.rule.watch
    return ExplainedRoute(
        policy=route.rule.name,
        model=plan.order[0],
        why=plan.why,
        order=list(plan.order),
        steps=plan.steps,
        accept=plan.accept,
        hedge_after_ms=_ms(plan.hedge_after),
        best=route.best,
        slack=None if watch is None else watch.slack,
        wants=ExplainedWants(wants.quality, _ms(wants.first_token), wants.tokens_per_second, wants.cost),
        candidates=[_explained(each) for each in route.explained()],
    )


def _explained(candidate: Candidate) -> ExplainedCandidate:
    return ExplainedCandidate(
        model=candidate.name,
        tier=candidate.tier,
        chance=candidate.good,
        spread=candidate.spread,
        will_do=candidate.will_do,
        input_tokens=candidate.input_tokens,
        output_tokens=candidate.output_tokens,
        cost=whole_billionths(candidate.cost),
        most_cost=whole_billionths(candidate.most_cost),
        first_token_ms=candidate.first_token * 1e3,
        first_token_ms_p95=candidate.first_token_by * 1e3,
        tokens_per_second=1 / candidate.per_token if candidate.per_token > 0 else None,
        refused=candidate.refused or None,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _request(body: RouteRequest) -> ChatRequest | CompletionRequest:
    given = {name: getattr(body, name) for name in body.__struct_fields__ if getattr(body, name) is not None}
    kind: type[ChatRequest] | type[CompletionRequest]
    if body.messages is not None:
        kind = ChatRequest
    elif body.prompt is not None:
        kind = CompletionRequest
    else:
        raise missing("messages")
    return msgspec.convert(
        {name: value for name, value in given.items() if name in kind.__struct_fields__}, kind
    )
