"""A request for embeddings that names a model which is served elsewhere: its money and what is told."""

from __future__ import annotations

import secrets
from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from headrace.errors import RequestError
from headrace.gateway.callers import Caller
from headrace.gateway.embeddings import Embedding, EmbeddingsAnswer, EmbeddingsRequest, EmbeddingsUsage
from headrace.gateway.route_report import RouteReport, whole_billionths
from headrace.gateway.routed.accounts import Accounts
from headrace.gateway.routed.member import Member, cost_of
from headrace.gateway.routed.remote_member import RemoteMember
from headrace.gateway.routed.route_metrics import RouteMetrics
from headrace.routing.budget import Budgets
from headrace.routing.wants import wants_of

_BYTES_PER_TOKEN = 4
_MARGIN_TOKENS = 64


class RemoteEmbeddings:
    """Asks remote members for embeddings. Policies have none: two models' vectors cannot be compared."""

    def __init__(
        self, members: Mapping[str, Member], policies: Container[str], budgets: Budgets, metrics: RouteMetrics
    ):
        self._members = members
        self._policies = policies
        self._budgets = budgets
        self._metrics = metrics

    async def answer(
        self, scope: Scope, caller: Caller, request: EmbeddingsRequest
    ) -> EmbeddingsAnswer | None:
        """None where the name is not of a model elsewhere. Raises RequestError, for a policy's name, too."""
        member = self._members.get(request.model)
        if isinstance(member, RemoteMember):
            caller.check_model(member.name)
            return await self._remote(member, scope, caller, request)
        if request.model in self._policies:
            raise RequestError(
                f"'model': {request.model} is a policy, and vectors of different models cannot be compared; "
                "name a model.",
                "model",
            )
        return None

    async def _remote(
        self, member: RemoteMember, scope: Scope, caller: Caller, request: EmbeddingsRequest
    ) -> EmbeddingsAnswer:
        member.check_embeds()
        size, price = len(msgspec.json.encode(request.input)), member.price_now()
        most = price.cost(size + _MARGIN_TOKENS, 0, 0)  # a token is a byte at least
        limit = wants_of(Headers(scope=scope), None).cost
        accounts = Accounts(self._budgets, f"embed-{secrets.token_hex(8)}", caller.name, limit)
        accounts.reserve_cost(0, most)
        cost, status = 0.0, "cancelled"
        expected = max(1, size // _BYTES_PER_TOKEN)
        try:
            vectors, usage = await member.embed(
                request, caller, expected, background=bool(scope.get("headrace.background"))
            )
            cost, status = cost_of(price, usage), "ok"
        except RequestError as error:
            status = error.code or str(error.status)
            raise
        except Exception as error:
            status = type(error).__name__
            raise
        finally:
            accounts.settle(0, cost)
            self._metrics.embedded(member.name, status, cost)
        report = RouteReport(
            member.name,
            member.name,
            member.tier,
            "named by the request",
            whole_billionths(cost),
            [member.name],
            [],
        )
        data: Sequence[Any] = vectors
        told = EmbeddingsUsage(usage.prompt_tokens, usage.prompt_tokens, report)
        return EmbeddingsAnswer([Embedding(i, vector) for i, vector in enumerate(data)], member.name, told)
