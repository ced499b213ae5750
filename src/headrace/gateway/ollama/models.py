"""The models that are here, in memory, to be fetched or to go: /api/tags, show, ps, pull, delete."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace import __version__
from headrace.errors import HeadraceError
from headrace.gateway.body import CLIENT_GONE, ClientGoneError, decode, read_body
from headrace.gateway.callers import Caller
from headrace.gateway.connection import while_connected
from headrace.gateway.embeddings import (
    EmbeddingsAnswer,
    EmbeddingsRequest,
    EmbeddingsUsage,
    embeddings,
    route_headers,
)
from headrace.gateway.errors import as_request_error, error_headers
from headrace.gateway.json_line import encode
from headrace.gateway.ollama.answers import error_json
from headrace.gateway.ollama.durations import NEVER, timestamp
from headrace.gateway.ollama.names import LATEST, canonical
from headrace.gateway.ollama.requests import ModelRequest
from headrace.gateway.pulls import PullProgress
from headrace.gateway.state import Gateway
from headrace.models.details import ModelDetails
from headrace.models.local import LocalFile

log = logging.getLogger("headrace.gateway")

OLLAMA_VERSION = "0.13.0"
"""Whose API this is: clients ask before they use what older servers lack."""

Page = Callable[[Request], Awaitable[Response]]


class ModelPages:
    """The endpoints that do not generate."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway
        self._catalogue = gateway.catalogue
        self._decoder = msgspec.json.Decoder(ModelRequest)

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/", running),
            Route("/api/version", _version),
            Route("/api/tags", _told(self.tags)),
            Route("/api/ps", _told(self.ps)),
            Route("/api/show", _told(self.show), methods=["POST"]),
            Route("/api/pull", _told(self.pull), methods=["POST"]),
            Route("/api/delete", _told(self.delete), methods=["DELETE"]),
            Route("/api/embed", _told(self.embed), methods=["POST"]),
            Route("/api/embeddings", _told(self.embedding), methods=["POST"]),
        ]

    async def tags(self, request: Request) -> Response:
        """The models that may be asked for."""
        may_ask = partial(self._gateway.may_ask, self._caller(request))
        files = [file for file in self._catalogue.available() if may_ask(file.name)]
        listed = [self._listed(file, await self._details(file)) for file in files]
        return _json({"models": [*listed, *map(_elsewhere, filter(may_ask, self._catalogue.elsewhere))]})

    async def ps(self, request: Request) -> Response:
        """The models in memory, and until when they stay."""
        files = {file.name: file for file in self._catalogue.available()}
        loaded = []
        may_ask = self._caller(request).may_ask
        for resident in filter(lambda one: may_ask(one.name), self._catalogue.residents()):
            file = files.get(resident.name)
            listed = {} if file is None else self._listed(file, await self._details(file))
            expires = resident.expires_at
            loaded.append(
                listed
                | {
                    "name": resident.name + LATEST,
                    "model": resident.name + LATEST,
                    "size": resident.footprint.bytes,
                    "size_vram": 0,
                    "expires_at": NEVER.isoformat() if expires is None else timestamp(expires),
                    "context_length": resident.served.context_length if resident.served else 0,
                    "fingerprint": resident.served.fingerprint if resident.served else None,
                    "loaded_at": timestamp(resident.since),
                }
            )
        return _json({"models": loaded})

    async def show(self, request: Request) -> Response:
        """What a model's file says of itself; of a policy or a model elsewhere, that it is there."""
        name = canonical(self._catalogue, (await self._asked(request)).named())
        self._gateway.check(self._caller(request), name)
        if name in self._catalogue.elsewhere:
            return _json(_shown_elsewhere(name))
        file = self._catalogue.find(name)
        details = await self._catalogue.details(file)
        info = {key: value for key, value in details.metadata.items() if not key.startswith("tokenizer.chat")}
        return _json(
            {
                "modelfile": f"FROM {file.name}\n",
                "template": details.chat_template or "{{ .Prompt }}",
                "details": _details(details),
                "model_info": info | {"general.parameter_count": details.parameters},
                "capabilities": _capabilities(details),
                "modified_at": timestamp(file.modified),
            }
        )

    async def pull(self, request: Request) -> Response:
        """Fetches a model, telling how far it is."""
        asked = await self._asked(request)
        name = asked.named().removesuffix(LATEST).replace(":", "-")
        self._caller(request).check_model(name)
        progress = self._catalogue.pull(name)
        if asked.stream is False:
            async with while_connected(request.receive), aclosing(progress):
                async for _ in progress:
                    pass
            return _json({"status": "success"})
        first = await anext(progress)  # what is refused at once gets a status of its own
        return StreamingResponse(_lines(first, progress), media_type="application/x-ndjson")

    async def delete(self, request: Request) -> Response:
        """Deletes a model's file."""
        name = canonical(self._catalogue, (await self._asked(request)).named())
        self._caller(request).check_model(name)
        self._catalogue.delete(name)
        return _json({"status": "success"})

    async def embed(self, request: Request) -> Response:
        """A vector for each text of `input`."""
        asked, began = await self._asked(request), time.perf_counter_ns()
        texts = [asked.input] if isinstance(asked.input, str) else asked.input or []
        answer = await self._vectors(request, asked, texts)
        told = {
            "model": asked.named(),
            "embeddings": [each.embedding for each in answer.data],
            "total_duration": time.perf_counter_ns() - began,
            "load_duration": 0,
            "prompt_eval_count": answer.usage.prompt_tokens,
        }
        return _embedded(told, answer)

    async def embedding(self, request: Request) -> Response:
        """The vector of `prompt`, as older clients ask for it."""
        asked = await self._asked(request)
        answer = await self._vectors(request, asked, [asked.prompt or ""])
        return _embedded({"embedding": answer.data[0].embedding}, answer)

    async def _vectors(self, request: Request, asked: ModelRequest, texts: Sequence[str]) -> EmbeddingsAnswer:
        name = canonical(self._catalogue, asked.named())
        if not texts:
            return EmbeddingsAnswer([], name, EmbeddingsUsage(0, 0))
        async with while_connected(request.receive):
            return await embeddings(self._gateway, request.scope, EmbeddingsRequest(name, [*texts]))

    def _caller(self, request: Request) -> Caller:
        return self._gateway.callers.identify(request.scope)

    async def _asked(self, request: Request) -> ModelRequest:
        body = await read_body(request.scope, request.receive, self._gateway.max_body_bytes)
        return decode(self._decoder, body)

    async def _details(self, file: LocalFile) -> ModelDetails | None:
        """None for a file that is broken, which must not hide the others."""
        try:
            return await self._catalogue.details(file)
        except (HeadraceError, OSError) as error:
            log.warning("%s: %s", file.path, error)
            return None

    @staticmethod
    def _listed(file: LocalFile, details: ModelDetails | None) -> dict[str, Any]:
        return {
            "name": file.name + LATEST,
            "model": file.name + LATEST,
            "modified_at": timestamp(file.modified),
            "size": file.size,
            "digest": file.sha256 or (details.digest if details else ""),
            "details": _details(details),
            "capabilities": _capabilities(details),
        }


def _elsewhere(name: str) -> dict[str, Any]:
    """A policy, or a model that is not served from here."""
    return {
        "name": name + LATEST,
        "model": name + LATEST,
        "modified_at": timestamp(time.time()),
        "size": 0,
        "digest": "",
        "details": {"parent_model": "", "format": "", "family": "", "families": [], "parameter_size": ""},
    }


def _shown_elsewhere(name: str) -> dict[str, Any]:
    """As much as clients look at before they ask it."""
    listed = _elsewhere(name)
    return {
        "modelfile": f"FROM {name}\n",
        "template": "{{ .Prompt }}",
        "details": listed["details"],
        "model_info": {},
        "capabilities": ["completion"],
        "modified_at": listed["modified_at"],
    }


def _details(details: ModelDetails | None) -> dict[str, Any]:
    family = details.architecture if details else ""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": details.parameter_size if details else "",
        "quantization_level": details.quantization if details else "",
    }


def _capabilities(details: ModelDetails | None) -> list[str]:
    if details is None:
        return []
    has = {"completion": True, "tools": details.tools, "thinking": details.thinking}
    return [name for name, had in has.items() if had]


async def _lines(first: PullProgress, progress: AsyncGenerator[PullProgress, None]) -> AsyncIterator[bytes]:
    """A fetch in Ollama's words; it is given up when the client goes away."""
    yield _line({"status": "pulling manifest"})
    async with aclosing(progress):
        try:
            yield _line(_layer(first))
            async for told in progress:
                yield _line(_layer(told))
        except Exception as error:
            yield error_json(as_request_error(error)) + b"\n"
            return
    for status in ("verifying sha256 digest", "writing manifest", "success"):
        yield _line({"status": status})


def _layer(told: PullProgress) -> dict[str, Any]:
    return {
        "status": f"pulling {told.sha256[:12]}",
        "digest": f"sha256:{told.sha256}",
        "total": told.total,
        "completed": told.completed,
    }


def _line(told: dict[str, Any]) -> bytes:
    return encode(told) + b"\n"


def _json(content: object, status: int = 200) -> Response:
    return Response(encode(content), status, media_type="application/json")


def _embedded(told: dict[str, Any], answer: EmbeddingsAnswer) -> Response:
    """With what there is to say of the route, where there was one."""
    report = answer.usage.headrace
    response = _json(told if report is UNSET else told | {"headrace": report})
    response.raw_headers += route_headers(answer)
    return response


def _told(page: Page) -> Page:
    """The page, with its errors in Ollama's shape."""

    async def answer(request: Request) -> Response:
        try:
            return await page(request)
        except ClientGoneError:
            return Response(status_code=CLIENT_GONE)
        except Exception as error:
            told = as_request_error(error)
            headers = {key.decode(): value.decode() for key, value in error_headers(told)}
            return Response(error_json(told), told.status, headers, "application/json")

    return answer


async def running(request: Request) -> Response:
    """How clients find out whether a server is there."""
    return PlainTextResponse("Ollama is running")


async def _version(request: Request) -> Response:
    return _json({"version": OLLAMA_VERSION, "headrace": __version__})
