"""The endpoints that generate: read, check, admit, run, and answer at once or as a stream.

What is special to a dialect (its bodies, its answers, its errors) is in a Dialect; all else is here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError, RequestError
from headrace.gateway.answering import Renderer, Running
from headrace.gateway.asking import Asking
from headrace.gateway.body import CLIENT_GONE, ClientGoneError, decode, read_body
from headrace.gateway.connection import send_error, send_json, while_connected
from headrace.gateway.deadline import Deadline, asked_timeout
from headrace.gateway.errors import error_json, internal, unavailable
from headrace.gateway.local_answer import local_answer
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest, refuse_unserved
from headrace.gateway.request_log import RequestRecord
from headrace.gateway.state import Gateway
from headrace.gateway.stream import Stream, whole_answers

Body = TypeVar("Body")


class Dialect(ABC, Generic[Body]):
    """The words of one endpoint. Holds no state of a request."""

    body: type[Body]
    """What clients send."""
    id_prefix: str
    """How an answer's id begins."""

    @abstractmethod
    def asked(self, body: Body) -> ChatRequest | CompletionRequest:
        """The request in OpenAI's words, which all else understands."""

    @abstractmethod
    def renderer(self, body: Body, running: Running) -> Renderer:
        """Writes the answer."""

    async def without_text(self, body: Body) -> bytes | None:
        """The answer to a body that asks for no text but, say, only for the model; None to all others."""
        return None

    def error(self, error: RequestError) -> bytes:
        """An error's body."""
        return error_json(error)

    def keep_alive(self, body: Body) -> float | None:
        """Seconds for which the model stays loaded after this request; None leaves it as it is."""
        return None


class GenerateEndpoint(Generic[Body]):
    """An ASGI application for one path."""

    def __init__(self, gateway: Gateway, dialect: Dialect[Body]):
        self.gateway = gateway
        self.dialect = dialect
        self._decoder = msgspec.json.Decoder(dialect.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500
        record = RequestRecord.of(scope)
        try:
            status = await self._serve(scope, receive, send, record)
        except ClientGoneError:
            status = CLIENT_GONE
        except RequestError as error:
            status = error.status
            await self._refuse(send, error)
        except HeadraceError as error:
            status = 503
            await self._refuse(send, unavailable(error))
        except Exception as error:
            await self._refuse(send, internal(error))
        finally:
            self.gateway.metrics.requests.labels(record.path, str(status)).inc()
            for observe in self.gateway.observers:
                observe(record, status)

    async def _refuse(self, send: Send, error: RequestError) -> None:
        await send_error(send, error, self.dialect.error(error))

    async def _serve(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> int:
        body = decode(self._decoder, await read_body(scope, receive, self.gateway.max_body_bytes))
        asked = self.dialect.asked(body)
        refuse_unserved(asked)
        caller = self.gateway.callers.identify(scope)
        router = self.gateway.router
        if router is None or not router.covers(asked.model):
            router = None
            caller.check_model(asked.model)
        else:
            router.check(caller, asked.model)
        if (told := await self.dialect.without_text(body)) is not None:
            await send_json(send, 200, told)
            return 200
        asked.priority = caller.priority(asked.priority or 0)
        asking = Asking(scope, caller, record, asked, self.dialect.id_prefix, self.dialect.keep_alive(body))
        deadline = Deadline(asked_timeout(scope, self.gateway.request_timeout))
        answer = local_answer(self.gateway, asking) if router is None else router.answer(asking)
        async with while_connected(receive) as client, deadline, answer as running:
            renderer = self.dialect.renderer(body, running)
            if asked.stream:
                status = await Stream(running, renderer, deadline, send).send_all()
            else:
                answers = await whole_answers(running.run, running.sequences)
                await send_json(send, 200, renderer.whole(answers), [*running.headers])
                status = 200
            client.answered()  # a remote may yet have to end its response
            return status
