"""Anthropic's two endpoints."""

from __future__ import annotations

from starlette.routing import Route
from starlette.types import Scope

from headrace.errors import RequestError
from headrace.gateway.answering import Renderer, Running
from headrace.gateway.anthropic.answers import TokenCount
from headrace.gateway.anthropic.errors import error_json
from headrace.gateway.anthropic.renderer import MessageRenderer
from headrace.gateway.anthropic.requests import CountRequest, MessagesRequest
from headrace.gateway.anthropic.translate import chat_request
from headrace.gateway.generate import Dialect, GenerateEndpoint
from headrace.gateway.json_endpoint import JsonEndpoint
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.prompts import offered_tools, render_messages
from headrace.gateway.state import Gateway


class MessagesDialect(Dialect[MessagesRequest]):
    """POST /v1/messages"""

    body = MessagesRequest
    id_prefix = "msg_"

    def asked(self, body: MessagesRequest) -> ChatRequest:
        return chat_request(body)

    def renderer(self, body: MessagesRequest, running: Running) -> Renderer:
        return MessageRenderer(running.head, body.max_tokens, running.run.usage)

    def error(self, error: RequestError) -> bytes:
        return error_json(error)


def anthropic_routes(gateway: Gateway) -> list[Route]:
    """Every path of the dialect."""

    async def count(scope: Scope, body: CountRequest) -> TokenCount:
        asked, caller, router = chat_request(body), gateway.callers.identify(scope), gateway.router
        if router is not None and router.covers(asked.model):
            router.check(caller, asked.model)
            if asked.model not in gateway.models:  # each model counts in its own way
                return TokenCount(router.tokens(asked))
        else:
            caller.check_model(asked.model)
        async with gateway.use(asked.model) as model:
            _, tokens = await render_messages(model, asked, offered_tools(asked))
            return TokenCount(len(tokens))

    counting = JsonEndpoint(gateway, CountRequest, count, error_json)
    return [
        Route("/v1/messages", GenerateEndpoint(gateway, MessagesDialect()), methods=["POST"]),
        Route("/v1/messages/count_tokens", counting, methods=["POST"]),
    ]
