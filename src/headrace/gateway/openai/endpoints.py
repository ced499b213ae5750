"""OpenAI's two endpoints that generate."""

from __future__ import annotations

from collections.abc import Callable

from headrace.gateway.answering import AnswerHead, Renderer
from headrace.gateway.generate import Dialect
from headrace.gateway.openai.answers import Usage
from headrace.gateway.openai.chat import ChatRenderer
from headrace.gateway.openai.completion import CompletionRenderer
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.prepare import Prepared
from headrace.gateway.served import ServedModel


class ChatDialect(Dialect[ChatRequest]):
    """POST /v1/chat/completions"""

    body = ChatRequest
    id_prefix = "chatcmpl-"

    def asked(self, body: ChatRequest) -> ChatRequest:
        return body

    def renderer(
        self,
        body: ChatRequest,
        asked: ChatRequest | CompletionRequest,
        head: AnswerHead,
        model: ServedModel,
        prepared: Prepared,
        usage: Callable[[], Usage],
    ) -> Renderer:
        return ChatRenderer(head, body, usage, model.prompter.token_bytes)


class CompletionDialect(Dialect[CompletionRequest]):
    """POST /v1/completions"""

    body = CompletionRequest
    id_prefix = "cmpl-"

    def asked(self, body: CompletionRequest) -> CompletionRequest:
        return body

    def renderer(
        self,
        body: CompletionRequest,
        asked: ChatRequest | CompletionRequest,
        head: AnswerHead,
        model: ServedModel,
        prepared: Prepared,
        usage: Callable[[], Usage],
    ) -> Renderer:
        return CompletionRenderer(head, body, usage, model.prompter.token_bytes, prepared.texts)
