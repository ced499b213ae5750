"""/v1/models: the models that a key may ask, in words that the clients of OpenAI and Anthropic understand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import RequestError
from headrace.gateway.anthropic.errors import error_json as anthropic_json
from headrace.gateway.errors import error_json
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway
from headrace.models.local import LocalFile

_MOST = 1000
"""Models of one page, as Anthropic has it."""


class ModelPages:
    """The two endpoints. A request with `anthropic-version` gets pages and errors as Anthropic has them."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway
        self._began = int(time.time())

    def routes(self) -> list[Route]:
        """Where they are."""
        return [Route("/v1/models", self.models), Route("/v1/models/{name:path}", self.model)]

    async def models(self, request: Request) -> Response:
        """GET /v1/models"""
        caller = self._gateway.callers.identify(request.scope)
        loaded = self._gateway.models
        others = [file for file in self._gateway.catalogue.available() if file.name not in loaded]
        every = [*map(_of_loaded, loaded.values()), *map(_of_file, others), *self._routed()]
        listed = [model for model in every if self._gateway.may_ask(caller, model["id"])]
        if not _speaks_anthropic(request):
            return _json({"object": "list", "data": listed})
        try:
            return _json(_page(listed, request))
        except RequestError as error:
            return Response(anthropic_json(error), error.status, media_type="application/json")

    def _routed(self) -> list[dict[str, Any]]:
        """Policies, and models that are served elsewhere."""
        router = self._gateway.router
        return [] if router is None else [_entry(name, self._began) for name in router.names()]

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME"""
        name = request.path_params["name"]
        try:
            self._gateway.check(self._gateway.callers.identify(request.scope), name)
            if (model := self._gateway.models.get(name)) is not None:
                return _json(_of_loaded(model))
            for routed in self._routed():
                if routed["id"] == name:
                    return _json(routed)
            return _json(_of_file(self._gateway.catalogue.find(name)))
        except RequestError as error:
            body = anthropic_json(error) if _speaks_anthropic(request) else error_json(error)
            return Response(body, error.status, media_type="application/json")


def _speaks_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _of_loaded(model: ServedModel) -> dict[str, Any]:
    return _entry(model.name, model.created) | {
        "max_model_len": model.context_length,
        "sampling_defaults": model.sampling,
    }


def _of_file(file: LocalFile) -> dict[str, Any]:
    """A model that is loaded when it is asked for."""
    return _entry(file.name, int(file.modified))


def _entry(name: str, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "headrace",
        "root": name,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, timezone.utc).isoformat().replace("+00:00", "Z"),
    }


def _page(listed: Sequence[dict[str, Any]], request: Request) -> dict[str, Any]:
    """The part that `limit`, `after_id` and `before_id` ask for; all where they are left out.

    Raises RequestError that names the parameter.
    """
    asked = request.query_params
    names = [model["id"] for model in listed]
    begin, end = 0, len(listed)
    for field in ("after_id", "before_id"):
        if field in asked and asked[field] not in names:
            raise RequestError(f"Invalid '{field}': there is no model {asked[field]!r:.200}.", field)
    if "after_id" in asked:
        begin = names.index(asked["after_id"]) + 1
    if "before_id" in asked:
        end = max(begin, names.index(asked["before_id"]))
    limit, more = _limit(asked.get("limit")), False
    if end - begin > limit:
        more = True
        if "before_id" in asked:
            begin = end - limit
        else:
            end = begin + limit
    part = listed[begin:end]
    return {
        "data": part,
        "object": "list",
        "has_more": more,
        "first_id": part[0]["id"] if part else None,
        "last_id": part[-1]["id"] if part else None,
    }


def _limit(given: str | None) -> int:
    if given is None:
        return _MOST
    limit = int(given) if given.isdecimal() and len(given) < 6 else 0
    if not 1 <= limit <= _MOST:
        raise RequestError(
            f"Invalid 'limit': expected a number from 1 to {_MOST}, got {given!r:.20}.", "limit"
        )
    return limit


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
