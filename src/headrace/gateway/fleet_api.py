"""The endpoints for operators: what the workers do, a plan, rolling restart, roles and draining."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.errors import RequestError
from headrace.fleet import Fleet
from headrace.fleet.planner import Limits, Plan
from headrace.fleet.rolling import Progress
from headrace.gateway.connection import send_error, send_json
from headrace.gateway.errors import as_request_error
from headrace.gateway.json_endpoint import JsonEndpoint
from headrace.gateway.prefix_access import may_operate
from headrace.gateway.state import Gateway


class RestartRequest(Struct):
    """POST /v1/fleet/restart"""

    model: str | None = None
    """The server's only one where it is left out."""
    reload: bool = False
    """Whether the model's file is another one now."""


class WorkerChange(Struct):
    """POST /v1/fleet/workers/{name}: one of both."""

    role: Literal["both", "prefill", "decode"] | None = None
    drain: bool = False
    model: str | None = None
    """Where workers of several models have the same name."""


class WorkerObject(Struct):
    """A worker."""

    name: str
    model: str
    role: str
    state: str
    pid: int | None
    fingerprint: str | None
    restarts: int
    load: int
    """Requests that have not ended."""
    step_ms: float | None
    """Milliseconds of a step, as measured, beside its rows; None while too little is known."""
    row_ms: float | None


class TrafficObject(Struct):
    """What was asked in the last minutes; means in tokens."""

    requests_per_s: float
    prompt_tokens: float
    cached_tokens: float
    output_tokens: float


class PlanObject(Struct):
    """How many workers keep the limits at the least cost."""

    both: int
    prefill: int
    decode: int
    meets: bool
    ttft_ms: float
    """Expected, as `tpot_ms`: what 95% of the requests keep."""
    tpot_ms: float
    reasons: list[str]


class ModelFleet(Struct):
    """The workers of one model."""

    model: str
    workers: list[WorkerObject]
    traffic: TrafficObject | None = None
    plan: PlanObject | None = None
    """Where limits are given and enough is known."""
    restart: Progress | None = None
    """The rolling restart that runs, or ran last."""


class FleetObject(Struct):
    """GET /v1/fleet"""

    data: list[ModelFleet]
    object: Literal["list"] = "list"


def fleet_routes(gateway: Gateway) -> list[Route]:
    """The routes of all of them."""
    api = _FleetApi(gateway)
    worker = JsonEndpoint(gateway, WorkerChange, api.change)
    return [
        Route("/v1/fleet", _Status(api), methods=["GET"]),
        Route("/v1/fleet/restart", JsonEndpoint(gateway, RestartRequest, api.restart), methods=["POST"]),
        Route("/v1/fleet/workers/{name}", worker, methods=["POST"]),
    ]


class _Status:
    """GET /v1/fleet as an ASGI application."""

    def __init__(self, api: _FleetApi):
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._api.status(scope)
        except Exception as error:
            await send_error(send, as_request_error(error))
        else:
            await send_json(send, 200, msgspec.json.encode(answer))


class _FleetApi:
    """What each endpoint does."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway

    async def status(self, scope: Scope) -> FleetObject:
        """GET /v1/fleet?ttft_limit_ms=&tpot_limit_ms=: every model that is loaded."""
        self._check(scope)
        query = parse_qs(scope["query_string"].decode("latin-1"))
        limits = Limits(*(_limit(query, name) for name in ("ttft_limit_ms", "tpot_limit_ms")))
        return FleetObject([await _described(name, fleet, limits) for name, fleet in self._fleets()])

    async def restart(self, scope: Scope, body: RestartRequest) -> Progress:
        """POST /v1/fleet/restart: begins; GET /v1/fleet tells how far it is."""
        self._check(scope)
        name, fleet = self._fleet(body.model)
        if not body.reload:
            return fleet.rolling.begin_restart()
        take = await self._gateway.catalogue.reloading(name)
        progress = fleet.rolling.begin_restart(reload=True)
        assert fleet.rolling.task is not None

        def done(_: object) -> None:
            if progress.done == progress.total:
                take()

        fleet.rolling.task.add_done_callback(done)
        return progress

    async def change(self, scope: Scope, body: WorkerChange) -> WorkerObject | dict[str, Any]:
        """POST /v1/fleet/workers/{name}"""
        self._check(scope)
        name = scope["path_params"]["name"]
        if (body.role is None) == (not body.drain):
            raise RequestError("Give either 'role' or 'drain': true.", "role")
        _, fleet = self._fleet(body.model, lambda f: any(r.name == name for r in f.replicas))
        if body.role is None:
            await fleet.rolling.drain(name)
            return {"name": name, "state": "stopped"}
        fleet.set_role(name, body.role)
        return next(worker for worker in await _workers(fleet) if worker.name == name)

    def _fleets(self) -> Iterator[tuple[str, Fleet]]:
        for resident in self._gateway.catalogue.residents():
            if resident.fleet is not None:
                yield resident.name, resident.fleet

    def _fleet(
        self, model: str | None, wanted: Callable[[Fleet], bool] = lambda _: True
    ) -> tuple[str, Fleet]:
        """The model's, or the only one that is wanted."""
        fleets = dict(self._fleets())
        if model is not None:
            if model not in fleets:
                raise RequestError(
                    f"The model {model!r:.200} is not loaded.", "model", status=404, code="model_not_found"
                )
            return model, fleets[model]
        found = [name for name, fleet in fleets.items() if wanted(fleet)] or list(fleets)
        if len(found) != 1:
            told = ", ".join(f"'{name}'" for name in found) or "none"
            raise RequestError(f"Name the 'model' whose workers are meant; loaded: {told}.", "model")
        return found[0], fleets[found[0]]

    def _check(self, scope: Scope) -> None:
        self._gateway.callers.identify(scope)
        if not may_operate(self._gateway, scope):
            raise RequestError(
                "Clients may not see or change the workers here: that takes a key with 'operator = true', or "
                "a client on this machine of a server without keys.",
                status=403,
                code="not_an_operator",
            )


async def _described(name: str, fleet: Fleet, limits: Limits) -> ModelFleet:
    told = ModelFleet(name, await _workers(fleet), restart=fleet.rolling.progress)
    if (load := fleet.sizing.load) is not None:
        told.traffic = TrafficObject(*(round(figure, 3) for figure in (load.rate, *load.means)))
    asked = limits if limits != Limits() else fleet.sizing.limits
    if asked != Limits():
        try:
            told.plan = _plan(await fleet.sizing.plan(asked))
        except RequestError as error:
            if error.code != "too_little_traffic":
                raise
    return told


async def _workers(fleet: Fleet) -> list[WorkerObject]:
    speeds = await fleet.sizing.speeds()
    loads = {replica.name: replica.load for replica in fleet.replicas}
    found = []
    for health in fleet.health():
        speed = speeds.get(health.name)
        found.append(
            WorkerObject(
                name=health.name,
                model=health.model,
                role=health.role,
                state=health.state.value,
                pid=health.pid,
                fingerprint=health.fingerprint,
                restarts=health.restarts,
                load=loads.get(health.name, 0),
                step_ms=None if speed is None else round(1e3 * speed.base, 4),
                row_ms=None if speed is None else round(1e3 * speed.row, 4),
            )
        )
    return found


def _plan(plan: Plan) -> PlanObject:
    ttft, tpot = (round(1e3 * seconds, 2) for seconds in plan.forecast[:2])
    return PlanObject(*plan.pools, plan.meets, ttft, tpot, list(plan.reasons))


def _limit(query: dict[str, list[str]], name: str) -> float | None:
    """Seconds."""
    if name not in query:
        return None
    text = query[name][-1]
    try:
        value = float(text) if len(text) < 20 else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise RequestError(f"Invalid '{name}': expected milliseconds above 0, got {text!r:.30}.", name)
    return value / 1e3
