"""OpenAI's two endpoints that generate."""

from __future__ import annotations

from headrace.gateway.answering import Renderer, Running
from headrace.gateway.generate import Dialect
from headrace.gateway.openai.chat import ChatRenderer
from headrace.gateway.openai.completion import CompletionRenderer
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest


class ChatDialect(Dialect[ChatRequest]):
    """POST /v1/chat/completions"""

    body = ChatRequest
    id_prefix = "chatcmpl-"

    def asked(self, body: ChatRequest) -> ChatRequest:
        return body

    def renderer(self, body: ChatRequest, running: Running) -> Renderer:
        return ChatRenderer(running.head, body, running.run.usage, running.token_bytes)


class CompletionDialect(Dialect[CompletionRequest]):
    """POST /v1/completions"""

    body = CompletionRequest
    id_prefix = "cmpl-"

    def asked(self, body: CompletionRequest) -> CompletionRequest:
        return body

    def renderer(self, body: CompletionRequest, running: Running) -> Renderer:
        return CompletionRenderer(running.head, body, running.run.usage, running.token_bytes, running.texts)
