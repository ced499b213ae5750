"""The endpoints that batches may ask, by path."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp

from headrace.gateway.embeddings import EmbeddingsEndpoint
from headrace.gateway.generate import GenerateEndpoint
from headrace.gateway.openai.endpoints import ChatDialect, CompletionDialect
from headrace.gateway.responses.endpoints import ResponsesDialect
from headrace.gateway.state import Gateway


def batch_endpoints(gateway: Gateway) -> Mapping[str, ASGIApp]:
    """As the server has them over HTTP."""
    return {
        "/v1/chat/completions": GenerateEndpoint(gateway, ChatDialect()),
        "/v1/completions": GenerateEndpoint(gateway, CompletionDialect()),
        "/v1/responses": GenerateEndpoint(gateway, ResponsesDialect()),
        "/v1/embeddings": EmbeddingsEndpoint(gateway),
    }
