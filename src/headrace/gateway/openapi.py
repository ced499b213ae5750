"""The description of the API, made of the structs that bodies are decoded to: /openapi.json and /docs."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace import __version__
from headrace.gateway.api_words import QUERY, WORDS, Words
from headrace.gateway.errors import ErrorBody
from headrace.gateway.generate import GenerateEndpoint
from headrace.gateway.json_endpoint import JsonEndpoint

_PAGE = Path(__file__).with_name("docs.html")
_REFERENCE = "#/components/schemas/{name}"
_OPEN = ("/", "/health", "/docs", "/openapi.json", "/metrics")
"""Pages whose errors are no matter of a request's content."""
_ERRORS = {
    "400": "The request is wrong; the error names the field.",
    "401": "No key, or one that is not known.",
    "403": "This server does not offer that.",
    "404": "There is no such model, file or batch.",
    "408": "The request did not arrive in time.",
    "409": "Not in this state.",
    "413": "The request is too large.",
    "415": "The content type or encoding is another than expected.",
    "429": "Too many requests; Retry-After says when to try again.",
    "500": "A fault of the server; its log has the number that the error tells.",
    "503": "Not now: the server ends, or a model cannot be reached. Retry-After says when to try again.",
    "504": "The request's time was over.",
}


class OllamaError(Struct):
    """An error in Ollama's words."""

    error: str


class AnthropicErrorDetail(Struct):
    type: str
    message: str


class AnthropicError(Struct):
    """An error in Anthropic's words."""

    error: AnthropicErrorDetail
    type: str


def openapi_routes(described: Sequence[Route]) -> list[Route]:
    """The routes of the description and its page, which describe themselves too."""
    content: list[bytes] = []

    async def document(request: Request) -> Response:
        return Response(content[0], media_type="application/json")

    page = _PAGE.read_bytes()
    headers = {"Content-Security-Policy": _policy(page), "X-Content-Type-Options": "nosniff"}

    async def docs(request: Request) -> Response:
        return Response(page, media_type="text/html", headers=headers)

    routes = [Route("/openapi.json", document), Route("/docs", docs)]
    content.append(msgspec.json.encode(describe([*described, *routes])))
    return routes


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The document: OpenAPI 3.1."""
    types: list[Any] = [ErrorBody, OllamaError, AnthropicError]
    operations: list[tuple[str, str, Words, Any]] = []
    for route in routes:
        path = re.sub(r":\w+}", "}", route.path)
        for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
            words = WORDS.get((method, path)) or Words(path.strip("/") or "The server is there")
            body = words.body or _body_of(route.endpoint)
            operations.append((method, path, words, body))
            types += [kind for kind in (body, words.answer) if kind is not None]
    types = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for method, path, words, body in operations:
        paths.setdefault(path, {})[method.lower()] = _operation(path, words, body, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _body_of(endpoint: object) -> Any:
    if isinstance(endpoint, GenerateEndpoint):
        return endpoint.dialect.body
    return endpoint.body if isinstance(endpoint, JsonEndpoint) else None


def _operation(path: str, words: Words, body: Any, schemas: dict[Any, Any]) -> dict[str, Any]:
    answer = {} if words.answer is None else schemas[words.answer]
    content = {words.answer_type: {"schema": answer} if words.answer_type == "application/json" else {}}
    if words.streams is not None:
        content[words.streams] = {}  # a schema would describe one event, not the text of all
    responses: dict[str, Any] = {"200": {"description": words.summary, "content": content}}
    if path == "/health":
        responses["503"] = {"description": "Not all of them can.", "content": content}
    elif path not in _OPEN:
        error = schemas[_error_of(path)]
        for status, text in _ERRORS.items():
            responses[status] = {"description": text, "content": {"application/json": {"schema": error}}}
    told: dict[str, Any] = {"summary": words.summary, "tags": [_tag(path)], "responses": responses}
    names = re.findall(r"{(\w+)}", path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    parameters += [{"name": name, "in": "query", "schema": QUERY[name]} for name in words.query]
    if parameters:
        told["parameters"] = parameters
    if body is not None:
        told["requestBody"] = {"required": True, "content": {words.body_type: {"schema": schemas[body]}}}
    if path in _OPEN:
        told["security"] = []
    return told


def _error_of(path: str) -> type[Struct]:
    if path.startswith("/api/"):
        return OllamaError
    return AnthropicError if path.startswith("/v1/messages") else ErrorBody


def _tag(path: str) -> str:
    if path.startswith("/api/"):
        return "Ollama"
    if path.startswith("/v1/messages"):
        return "Anthropic"
    for start, tag in (
        ("/v1/prefix", "Prefixes"),
        ("/v1/fleet", "Fleet"),
        ("/v1/feedback", "Routing"),
        ("/v1/files", "Batches"),
        ("/v1/batches", "Batches"),
    ):
        if path.startswith(start):
            return tag
    return "OpenAI" if path.startswith("/v1/") else "Server"


def _policy(page: bytes) -> str:
    """Lets the page run what is written in it, ask this server, and nothing else."""
    allowed = {}
    for tag in ("script", "style"):
        (inside,) = re.findall(b"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), page, re.DOTALL)
        allowed[tag] = base64.b64encode(hashlib.sha256(inside).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{allowed['script']}'; "
        f"style-src 'sha256-{allowed['style']}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
