"""The endpoint."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route

from headrace.errors import RequestError
from headrace.gateway.answering import AnswerHead, Renderer
from headrace.gateway.errors import error_json
from headrace.gateway.field_names import in_own_names
from headrace.gateway.generate import Dialect, GenerateEndpoint
from headrace.gateway.openai.answers import Usage
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.prepare import Prepared
from headrace.gateway.responses.renderer import ResponseRenderer
from headrace.gateway.responses.requests import ResponsesRequest
from headrace.gateway.responses.translate import NAMES, chat_request
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway


class ResponsesDialect(Dialect[ResponsesRequest]):
    """POST /v1/responses"""

    body = ResponsesRequest
    id_prefix = "resp_"

    def asked(self, body: ResponsesRequest) -> ChatRequest:
        return chat_request(body)

    def renderer(
        self,
        body: ResponsesRequest,
        asked: ChatRequest | CompletionRequest,
        head: AnswerHead,
        model: ServedModel,
        prepared: Prepared,
        usage: Callable[[], Usage],
    ) -> Renderer:
        return ResponseRenderer(head, body, prepared.submits[0].sampling, prepared.parser, usage)

    def error(self, error: RequestError) -> bytes:
        return error_json(in_own_names(error, NAMES))


def responses_routes(gateway: Gateway) -> list[Route]:
    """The route of the endpoint."""
    return [Route("/v1/responses", GenerateEndpoint(gateway, ResponsesDialect()), methods=["POST"])]
