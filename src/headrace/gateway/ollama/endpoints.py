"""/api/chat and /api/generate."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

from starlette.routing import Route

from headrace.errors import RequestError
from headrace.gateway.answering import Renderer, Running
from headrace.gateway.generate import Dialect, GenerateEndpoint
from headrace.gateway.ollama import requests
from headrace.gateway.ollama.answers import OllamaRenderer, error_json, without_text
from headrace.gateway.ollama.durations import seconds
from headrace.gateway.ollama.models import ModelPages
from headrace.gateway.ollama.names import canonical
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.state import Gateway

Asked = TypeVar("Asked", bound=requests.Asked)


class OllamaDialect(Dialect[Asked]):
    """What the two endpoints share."""

    id_prefix = "ollama-"
    chats: bool
    """Whether answers are messages."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway

    @abstractmethod
    def translated(self, body: Asked, model: str) -> ChatRequest | CompletionRequest:
        """The request in OpenAI's words."""

    def asked(self, body: Asked) -> ChatRequest | CompletionRequest:
        return self.translated(body, canonical(self._gateway.catalogue, body.model))

    def renderer(self, body: Asked, running: Running) -> Renderer:
        told = running.head.model
        if told == canonical(self._gateway.catalogue, body.model):
            told = body.model  # with its tag, as clients look for it
        return OllamaRenderer(
            told,
            chats=self.chats,
            arrived=body.arrived,
            run=running.run,
            token_bytes=running.token_bytes if body.logprobs else None,
        )

    def error(self, error: RequestError) -> bytes:
        return error_json(error)

    def keep_alive(self, body: Asked) -> float | None:
        return seconds(body.keep_alive)

    async def without_text(self, body: Asked) -> bytes | None:
        """Loads the model that a request without a prompt names, or unloads it where its keep_alive is 0.

        A server that was started with its models keeps them: there it is loaded, whatever the keep_alive.
        A policy, or a model elsewhere, needs no loading.
        """
        if body.asks_for_text:
            return None
        catalogue = self._gateway.catalogue
        model, keep_alive = canonical(catalogue, body.model), seconds(body.keep_alive)
        if model in catalogue.elsewhere:
            return without_text(body.model, self.chats, "unload" if keep_alive == 0 else "load")
        if keep_alive == 0 and catalogue.on_demand:
            if model not in catalogue.loaded_models:
                catalogue.find(model)
            await catalogue.unload(model)
            return without_text(body.model, self.chats, "unload")
        async with self._gateway.use(model, keep_alive):
            return without_text(body.model, self.chats, "load")


class ChatDialect(OllamaDialect[requests.ChatRequest]):
    """POST /api/chat"""

    body = requests.ChatRequest
    chats = True

    def translated(self, body: requests.ChatRequest, model: str) -> ChatRequest:
        return requests.chat(body, model)


class GenerateDialect(OllamaDialect[requests.GenerateRequest]):
    """POST /api/generate"""

    body = requests.GenerateRequest
    chats = False

    def translated(self, body: requests.GenerateRequest, model: str) -> ChatRequest | CompletionRequest:
        return requests.generate(body, model)


def ollama_routes(gateway: Gateway) -> list[Route]:
    """Every path of the dialect."""
    return [
        Route("/api/chat", GenerateEndpoint(gateway, ChatDialect(gateway)), methods=["POST"]),
        Route("/api/generate", GenerateEndpoint(gateway, GenerateDialect(gateway)), methods=["POST"]),
        *ModelPages(gateway).routes(),
    ]
