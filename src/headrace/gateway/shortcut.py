"""The way of requests that generate: straight to their endpoint, past what would handle each chunk."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.gateway.generate import GenerateEndpoint


class Shortcut:
    """An ASGI application that answers as the given one does, and at less cost where it streams.

    Starlette wraps what an endpoint sends in layers that turn its exceptions into answers. Endpoints that
    generate answer those themselves, so nothing is lost where a POST to exactly their path goes to them.
    """

    def __init__(self, app: Starlette):
        self._app = app
        self._endpoints = {
            route.path: route.endpoint
            for route in app.routes
            if isinstance(route, Route) and isinstance(route.endpoint, GenerateEndpoint)
        }

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["method"] == "POST":
            return self._endpoints.get(scope["path"], self._app)(scope, receive, send)
        return self._app(scope, receive, send)
