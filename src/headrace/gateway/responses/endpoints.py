"""The endpoint."""

from __future__ import annotations

from starlette.routing import Route

from headrace.errors import RequestError
from headrace.gateway.answering import Renderer, Running
from headrace.gateway.errors import error_json
from headrace.gateway.field_names import in_own_names
from headrace.gateway.generate import Dialect, GenerateEndpoint
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.responses.renderer import ResponseRenderer
from headrace.gateway.responses.requests import ResponsesRequest
from headrace.gateway.responses.translate import NAMES, chat_request
from headrace.gateway.state import Gateway


class ResponsesDialect(Dialect[ResponsesRequest]):
    """POST /v1/responses"""

    body = ResponsesRequest
    id_prefix = "resp_"

    def asked(self, body: ResponsesRequest) -> ChatRequest:
        return chat_request(body)

    def renderer(self, body: ResponsesRequest, running: Running) -> Renderer:
        return ResponseRenderer(running.head, body, running.sampling, running.run.usage)

    def error(self, error: RequestError) -> bytes:
        return error_json(in_own_names(error, NAMES))


def responses_routes(gateway: Gateway) -> list[Route]:
    """The route of the endpoint."""
    return [Route("/v1/responses", GenerateEndpoint(gateway, ResponsesDialect()), methods=["POST"])]
