"""POST /v1/embeddings: one vector for each text, of models that give them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.errors import RequestError
from headrace.gateway.json_endpoint import JsonEndpoint, WithHeaders
from headrace.gateway.prompts import Prompt, encode_prompt
from headrace.gateway.route_report import RouteReport, money, report_headers
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway

MAX_INPUTS = 2048


class EmbeddingsRequest(Struct):
    """POST /v1/embeddings"""

    model: Annotated[str, Meta(min_length=1)]
    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1, max_length=MAX_INPUTS)]
    """A text, several texts, token ids, or several lists of them."""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    """Only what the model has."""


class Embedding(Struct):
    index: int
    embedding: list[float] | str
    """Numbers, or the base64 of little-endian 32 bit floats."""
    object: Literal["embedding"] = "embedding"


class EmbeddingsUsage(Struct):
    prompt_tokens: int
    total_tokens: int
    headrace: RouteReport | UnsetType = UNSET
    """Where the model is served elsewhere."""


class EmbeddingsAnswer(Struct):
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage
    object: Literal["list"] = "list"


class EmbeddingsEndpoint:
    """An ASGI application."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway
        self._endpoint = JsonEndpoint(gateway, EmbeddingsRequest, self._embed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)

    async def _embed(self, scope: Scope, body: EmbeddingsRequest) -> WithHeaders:
        answer = await embeddings(self._gateway, scope, body)
        return WithHeaders(answer, route_headers(answer))


async def embeddings(gateway: Gateway, scope: Scope, body: EmbeddingsRequest) -> EmbeddingsAnswer:
    """A vector for each input, of a model here or elsewhere. Raises RequestError."""
    inputs, router = split_inputs(body), gateway.router
    if router is not None:
        caller = gateway.callers.identify(scope)
        if (answer := await router.embeddings.answer(scope, caller, body)) is not None:
            return answer
    model, prompts, vectors = await _embed(gateway, scope, body.model, inputs)
    return _answer(body, model, prompts, vectors)


def route_headers(answer: EmbeddingsAnswer) -> list[tuple[bytes, bytes]]:
    """What the response's headers say of the route; nothing where the model is here."""
    report = answer.usage.headrace
    return [] if report is UNSET else report_headers(report, cost=money(report.cost))


async def _embed(
    gateway: Gateway, scope: Scope, name: str, inputs: Sequence[Prompt]
) -> tuple[ServedModel, list[list[int]], list[list[float]]]:
    """The model of that name, the tokens of each input, and its vector, of length 1."""
    caller, admission = gateway.callers.identify(scope), gateway.admission
    caller.check_model(name)
    background = bool(scope.get("headrace.background"))
    if not background:
        admission.check(caller, name, len(inputs))
    async with gateway.use(name) as model:
        fields = [f"input[{i}]" if len(inputs) > 1 else "input" for i in range(len(inputs))]
        prompts = [await encode_prompt(model, one, field) for one, field in zip(inputs, fields, strict=True)]
        tokens = sum(map(len, prompts))
        async with admission.admit(
            caller, model.name, sequences=len(inputs), prompt_tokens=tokens, background=background
        ) as seat:

            async def one(prompt: list[int]) -> list[float]:
                vector = await model.engine.embed(prompt)
                seat.first_token()
                seat.finished()
                return vector

            vectors = await _all([asyncio.ensure_future(one(prompt)) for prompt in prompts])
    return model, prompts, vectors


async def _all(tasks: list[asyncio.Future[list[float]]]) -> list[list[float]]:
    """Their results; the first that fails ends all."""
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def embeddings_routes(gateway: Gateway) -> list[Route]:
    """Its route."""
    return [Route("/v1/embeddings", EmbeddingsEndpoint(gateway), methods=["POST"])]


def split_inputs(body: EmbeddingsRequest) -> list[Prompt]:
    """The request's texts, one or several. Raises RequestError where texts, ids and lists are mixed."""
    if isinstance(body.input, str):
        return [body.input]
    kinds = {type(part) for part in body.input}
    if kinds == {int}:
        return [[part for part in body.input if isinstance(part, int)]]
    if len(kinds) != 1:
        raise RequestError(
            "Invalid 'input': expected a string, strings, token ids, or lists of token ids, not a mixture.",
            "input",
        )
    return [part for part in body.input if not isinstance(part, int)]


def _answer(
    body: EmbeddingsRequest, model: ServedModel, prompts: list[list[int]], vectors: list[list[float]]
) -> EmbeddingsAnswer:
    size = len(vectors[0])
    if body.dimensions not in (None, size):
        raise RequestError(
            f"Invalid 'dimensions': the embeddings of '{model.name}' have {size}; leave it out.",
            "dimensions",
            code="unsupported_value",
        )
    made: list[Any] = vectors
    if body.encoding_format == "base64":
        made = [base64.b64encode(np.array(vector, "<f4").tobytes()).decode() for vector in vectors]
    tokens = sum(map(len, prompts))
    return EmbeddingsAnswer(
        [Embedding(i, vector) for i, vector in enumerate(made)], model.name, EmbeddingsUsage(tokens, tokens)
    )
