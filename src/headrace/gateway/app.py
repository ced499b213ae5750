"""The ASGI application: which path leads where, and errors in OpenAI's shape for all of them."""

from __future__ import annotations

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.errors import RequestError
from headrace.fleet import State
from headrace.gateway.anthropic.endpoints import anthropic_routes
from headrace.gateway.batches.api import batch_routes
from headrace.gateway.embeddings import embeddings_routes
from headrace.gateway.error_words import error_body
from headrace.gateway.errors import error_json, internal
from headrace.gateway.fleet_api import fleet_routes
from headrace.gateway.generate import GenerateEndpoint
from headrace.gateway.metrics import CONTENT_TYPE
from headrace.gateway.model_pages import ModelPages
from headrace.gateway.ollama.endpoints import ollama_routes
from headrace.gateway.openai.endpoints import ChatDialect, CompletionDialect
from headrace.gateway.openapi import openapi_routes
from headrace.gateway.prefix_api import prefix_routes
from headrace.gateway.responses.endpoints import responses_routes
from headrace.gateway.routed.api import routing_endpoints
from headrace.gateway.state import Gateway
from headrace.gateway.token_api import token_routes


def create_app(gateway: Gateway) -> Starlette:
    """The application that serves the gateway's models."""
    pages = _Pages(gateway)
    routes = [
        Route("/v1/chat/completions", GenerateEndpoint(gateway, ChatDialect()), methods=["POST"]),
        Route("/v1/completions", GenerateEndpoint(gateway, CompletionDialect()), methods=["POST"]),
        *responses_routes(gateway),
        *anthropic_routes(gateway),
        *prefix_routes(gateway),
        *fleet_routes(gateway),
        *routing_endpoints(gateway),
        *ollama_routes(gateway),
        *embeddings_routes(gateway),
        *token_routes(gateway),
        *batch_routes(gateway),
        *ModelPages(gateway).routes(),
        Route("/health", pages.health),
        Route("/metrics", pages.metrics),
    ]
    return Starlette(
        routes=[*routes, *openapi_routes(routes)],
        exception_handlers={
            HTTPException: _http_error,
            RequestError: _request_error,
            Exception: _internal_error,
        },
    )


class _Pages:
    """The endpoints that only report."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway

    async def health(self, request: Request) -> Response:
        """200 where every model can be asked, else 503 and what is wrong."""
        if self._gateway.admission.draining:
            return _json({"status": "draining"}, 503)
        fleets = [model.engine.health() for model in self._gateway.models.values()]
        ready = all(any(replica.state is State.READY for replica in fleet) for fleet in fleets)
        workers = [replica for fleet in fleets for replica in fleet]
        return _json({"status": "ok" if ready else "unavailable", "workers": workers}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        stats = {name: await model.engine.stats() for name, model in self._gateway.models.items()}
        return Response(self._gateway.metrics.render(stats), media_type=CONTENT_TYPE)


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        told = RequestError(
            f"There is no {asked!r:.300}; the API is under /v1.", status=404, code="not_found"
        )
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        told = RequestError(
            f"{asked!r:.300} is not possible; use {allowed}.", status=405, code="method_not_allowed"
        )
    else:
        told = RequestError(error.detail, status=error.status_code)
    body = error_body(request.url.path, told)
    return Response(body, told.status, dict(error.headers or {}), "application/json")


def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return Response(error_json(error), error.status, media_type="application/json")


def _internal_error(request: Request, error: Exception) -> Response:
    return Response(error_json(internal(error)), 500, media_type="application/json")
