"""The endpoints about prefixes: /v1/prefix lists hot ones; /explain, /warm, /pin and /unpin take a prompt."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.engine.prefix_report import CachedPrefix
from headrace.errors import RequestError
from headrace.gateway.admission import Seat
from headrace.gateway.body import ClientGoneError, decode, read_body
from headrace.gateway.connection import send_error, send_json, while_connected
from headrace.gateway.errors import as_request_error
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.prefix_access import explain_all, may_see_prefixes
from headrace.gateway.prefix_report import shortened, text_of
from headrace.gateway.prepare import prepare
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway

_MOST_LISTED = 100
_LISTED = 20
SALT_HEADER = b"x-headrace-cache-salt"

Request = ChatRequest | CompletionRequest


class _Kind(Struct):
    messages: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET


class _Unpin(Struct):
    id: str


def prefix_routes(gateway: Gateway) -> list[Route]:
    """The routes of all of them."""
    api = _PrefixApi(gateway)
    posts = {"explain": api.explain, "warm": api.warm, "pin": api.pin, "unpin": api.unpin}
    return [
        Route("/v1/prefix", _Endpoint(gateway, api.hottest), methods=["GET"]),
        *(
            Route(f"/v1/prefix/{name}", _Endpoint(gateway, work), methods=["POST"])
            for name, work in posts.items()
        ),
    ]


class _Endpoint:
    """An ASGI application around one piece of work, which answers with something to be sent as JSON."""

    def __init__(self, gateway: Gateway, work: Callable[[Scope, bytes], Awaitable[object]]):
        self._gateway = gateway
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGoneError):
            try:
                body = await read_body(scope, receive, self._gateway.max_body_bytes)
                async with while_connected(receive):
                    answer = await self._work(scope, body)
            except ClientGoneError:
                raise
            except Exception as error:
                await send_error(send, as_request_error(error))
            else:
                await send_json(send, 200, msgspec.json.encode(answer))


class _PrefixApi:
    """What each endpoint does."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway
        self._kind = msgspec.json.Decoder(_Kind)
        self._chat = msgspec.json.Decoder(ChatRequest)
        self._completion = msgspec.json.Decoder(CompletionRequest)
        self._unpin = msgspec.json.Decoder(_Unpin)

    async def hottest(self, scope: Scope, body: bytes) -> object:
        """GET /v1/prefix?limit=: of every model that is loaded, within the namespace of the salt's header."""
        salt = next((value.decode("latin-1") for name, value in scope["headers"] if name == SALT_HEADER), "")
        limit = _limit(scope["query_string"])
        show = bool(salt) or may_see_prefixes(self._gateway, scope)
        data = []
        for model in self._models(scope):
            found = await model.engine.prefixes.hottest(limit, salt)
            data += [_described(model, prefix, salt, show) for prefix in found]
        return {"object": "list", "data": data}

    async def explain(self, scope: Scope, body: bytes) -> object:
        """POST /v1/prefix/explain: how much of each prompt is cached, and where it leaves what is cached."""
        request = self._request(scope, body)
        async with self._gateway.use(request.model) as model:
            prompts = await _prompts(model, request)
            reports = await explain_all(self._gateway, scope, model, request, prompts)
            return {"object": "list", "model": model.name, "data": reports}

    async def warm(self, scope: Scope, body: bytes) -> object:
        """POST /v1/prefix/warm: computes each prompt, after all else, so that it is cached."""
        request = self._request(scope, body)
        async with self._gateway.use(request.model) as model:
            prompts = await _prompts(model, request)
            async with self._admit(scope, request, prompts):
                for prompt in prompts:
                    await model.engine.prefixes.warm(prompt, request.cache_salt or "")
            data = [{"prompt_tokens": len(prompt)} for prompt in prompts]
            return {"object": "list", "model": model.name, "data": data}

    async def pin(self, scope: Scope, body: bytes) -> object:
        """POST /v1/prefix/pin: computes each prompt and keeps its whole blocks."""
        self._check_may_pin(scope)
        request = self._request(scope, body)
        async with self._gateway.use(request.model) as model:
            prompts = await _prompts(model, request)
            async with self._admit(scope, request, prompts):
                data = [await _pin(model, prompt, request.cache_salt or "") for prompt in prompts]
            return {"object": "list", "model": model.name, "data": data}

    async def unpin(self, scope: Scope, body: bytes) -> object:
        """POST /v1/prefix/unpin: lets the prefix of this id be evicted again."""
        self._check_may_pin(scope)
        wanted = decode(self._unpin, body).id
        for model in self._models(scope):
            if (pin := await model.engine.prefixes.unpin(wanted)) is not None:
                return {"id": pin.id, "model": model.name, "tokens": len(pin.tokens), "pinned": False}
        raise RequestError(f"There is no pin {wanted!r:.60}.", "id", status=404, code="pin_not_found")

    def _admit(self, scope: Scope, request: Request, prompts: Sequence[Sequence[int]]) -> Seat:
        return self._gateway.admission.admit(
            self._gateway.callers.identify(scope),
            request.model,
            sequences=len(prompts),
            prompt_tokens=sum(map(len, prompts)),
            output_tokens=len(prompts),
        )

    def _models(self, scope: Scope) -> list[ServedModel]:
        """Those that are loaded and that the caller may ask."""
        caller = self._gateway.callers.identify(scope)
        return [model for model in self._gateway.models.values() if caller.may_ask(model.name)]

    def _request(self, scope: Scope, body: bytes) -> Request:
        caller = self._gateway.callers.identify(scope)
        kind = decode(self._kind, body)
        if kind.messages is UNSET and kind.prompt is UNSET:
            raise RequestError("Missing required field 'messages', or 'prompt'.", "messages")
        request: Request
        request = decode(self._completion, body) if kind.messages is UNSET else decode(self._chat, body)
        caller.check_model(request.model)
        return request

    def _check_may_pin(self, scope: Scope) -> None:
        if not may_see_prefixes(self._gateway, scope):
            raise RequestError(
                "Clients may not pin prefixes here; a server started with --expose-prefixes lets them.",
                status=403,
                code="pin_not_allowed",
            )


async def _prompts(model: ServedModel, request: Request) -> list[list[int]]:
    return (await prepare(f"prefix-{secrets.token_hex(8)}", model, request)).prompts


async def _pin(model: ServedModel, prompt: list[int], salt: str) -> dict[str, Any]:
    try:
        pin, told = await model.engine.prefixes.pin(prompt, salt)
    except RequestError as error:
        raise RequestError(str(error), status=409, code="pin_refused") from error
    return {
        "id": pin.id,
        "prompt_tokens": len(prompt),
        "pinned_tokens": len(pin.tokens),
        "blocks_pinned": told.blocks,
        "blocks_pinnable": told.limit,
    }


def _described(model: ServedModel, prefix: CachedPrefix, salt: str, show: bool) -> dict[str, Any]:
    return {
        "id": model.engine.prefixes.id_of(prefix.tokens, salt),
        "model": model.name,
        "tokens": len(prefix.tokens),
        "blocks": prefix.blocks,
        "hits": prefix.hits,
        "last_use": prefix.last_use,
        "pinned": prefix.pinned,
        "text": shortened(text_of(model.prompter, prefix.tokens)) if show else None,
    }


def _limit(query: bytes) -> int:
    asked = parse_qs(query.decode("latin-1")).get("limit", [str(_LISTED)])[-1]
    digits = asked.isascii() and asked.isdigit() and len(asked) <= 4  # a number of thousands is slow to read
    if not digits or not 1 <= int(asked) <= _MOST_LISTED:
        raise RequestError(
            f"Invalid 'limit': expected a number from 1 to {_MOST_LISTED}, got {asked!r:.30}.", "limit"
        )
    return int(asked)
