"""POST /tokenize and /detokenize, in the words of vLLM and of llama.cpp's server."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.routing import Route
from starlette.types import Scope

from headrace.errors import RequestError
from headrace.gateway.json_endpoint import JsonEndpoint
from headrace.gateway.openai.requests import ChatMessage, ChatRequest, Tool
from headrace.gateway.prompts import offered_tools, render_messages
from headrace.gateway.served import ServedModel, off_the_loop
from headrace.gateway.state import Gateway

_TokenId = Annotated[int, Meta(ge=0)]


class TokenizeRequest(Struct):
    """One of `prompt`, `content` and `messages`."""

    model: str | None = None
    """May be left out where the server has one model."""
    prompt: str | None = None
    content: str | None = None
    """The same in llama.cpp's words; special tokens are then added only if asked for."""
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    """A conversation, put through the chat template."""
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    """Whether a text begins with the token that the model begins texts with."""
    add_special: bool | None = None
    """The same in llama.cpp's words."""
    return_token_strs: bool | None = None


class TokenizeAnswer(Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(Struct):
    tokens: list[_TokenId]
    model: str | None = None


class DetokenizeAnswer(Struct):
    prompt: str
    content: str
    """The same in llama.cpp's words."""


def token_routes(gateway: Gateway) -> list[Route]:
    """The routes of both."""
    api = _TokenApi(gateway)
    return [
        Route("/tokenize", JsonEndpoint(gateway, TokenizeRequest, api.tokenize), methods=["POST"]),
        Route("/detokenize", JsonEndpoint(gateway, DetokenizeRequest, api.detokenize), methods=["POST"]),
    ]


class _TokenApi:
    def __init__(self, gateway: Gateway):
        self._gateway = gateway

    async def tokenize(self, scope: Scope, body: TokenizeRequest) -> TokenizeAnswer:
        async with self._gateway.use(self._name(scope, body.model)) as model:
            tokens = await _tokens(model, body)
            answer = TokenizeAnswer(len(tokens), model.context_length, tokens)
            if body.return_token_strs:
                answer.token_strs = [_text(model, [token]) for token in tokens]
            return answer

    async def detokenize(self, scope: Scope, body: DetokenizeRequest) -> DetokenizeAnswer:
        async with self._gateway.use(self._name(scope, body.model)) as model:
            most = model.prompter.vocab_size - 1
            for i, token in enumerate(body.tokens):
                if token > most:
                    raise RequestError(
                        f"Invalid 'tokens[{i}]': expected a token id from 0 to {most}, got {token}.",
                        f"tokens[{i}]",
                    )
            text = await off_the_loop(len(body.tokens), lambda: _text(model, body.tokens))
            return DetokenizeAnswer(text, text)

    def _name(self, scope: Scope, asked: str | None) -> str:
        """The model that is meant, where the caller may ask it."""
        names = list(self._gateway.models) if asked is None else [asked]
        if len(names) != 1:
            raise RequestError("Missing required field 'model', for the server has not just one.", "model")
        self._gateway.callers.identify(scope).check_model(names[0])
        return names[0]


async def _tokens(model: ServedModel, body: TokenizeRequest) -> list[int]:
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError("Expected exactly one of 'prompt', 'content' and 'messages'.", "prompt")
    if body.messages is not None:
        chat = ChatRequest(
            model=model.name,
            messages=body.messages,
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        return (await render_messages(model, chat, offered_tools(chat)))[1]
    text = body.prompt if body.prompt is not None else body.content or ""
    special = body.add_special_tokens
    if special is None:
        special = body.prompt is not None if body.add_special is None else body.add_special
    return await off_the_loop(len(text), lambda: model.prompter.encode(text, add_special=special))


def _text(model: ServedModel, tokens: list[int]) -> str:
    return b"".join(map(model.prompter.token_bytes, tokens)).decode("utf-8", errors="replace")
