"""The endpoints that generate: read, check, admit, run, and answer at once or as a stream.

What is special to a dialect (its bodies, its answers, its errors) is in a Dialect; all else is here, once.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError, RequestError
from headrace.gateway.answering import AnswerHead, Renderer
from headrace.gateway.body import CLIENT_GONE, ClientGoneError, decode, read_body
from headrace.gateway.connection import send_error, send_json, while_connected
from headrace.gateway.deadline import Deadline, asked_timeout
from headrace.gateway.errors import error_json, internal, unavailable
from headrace.gateway.openai.answers import Usage
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest, refuse_unserved
from headrace.gateway.prefix_access import asks_to_explain, explain_all
from headrace.gateway.prepare import Prepared, prepare, sequences
from headrace.gateway.request_log import RequestRecord
from headrace.gateway.run import Run
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway
from headrace.gateway.stream import Stream, whole_answers

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class Running:
    """A request that runs: what its answer is written from."""

    head: AnswerHead
    model: ServedModel
    prepared: Prepared
    usage: Callable[[], Usage]
    """Tokens so far."""


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
        caller.check_model(asked.model)
        if (answer := await self.dialect.without_text(body)) is not None:
            await send_json(send, 200, answer)
            return 200
        asked.priority = caller.priority(asked.priority or 0)
        deadline = Deadline(asked_timeout(scope, self.gateway.request_timeout))
        async with (
            while_connected(receive),
            deadline,
            self.gateway.use(asked.model, self.dialect.keep_alive(body)) as model,
        ):
            count = sequences(asked)
            background = bool(scope.get("headrace.background"))
            if not background:
                self.gateway.admission.check(caller, model.name, count, asked.priority)
            record.id = self.dialect.id_prefix + secrets.token_hex(12)
            record.model, record.asked = model.name, asked
            prepared = await prepare(record.id, model, asked)
            seat = self.gateway.admission.admit(
                caller,
                model.name,
                sequences=count,
                prompt_tokens=sum(map(len, prepared.prompts)),
                output_tokens=sum(submit.max_tokens for submit in prepared.submits),
                priority=asked.priority,
                background=background,
            )
            async with seat:
                record.queue_seconds = seat.queue_seconds
                choices = asked.n or 1
                run = record.run = Run(
                    model, prepared.submits, choices, seat, self.gateway.metrics, record.arrived
                )
                if asks_to_explain(scope):
                    run.prefix = await explain_all(self.gateway, scope, model, asked, prepared.prompts)
                head = AnswerHead(
                    record.id, int(time.time()), model.name, model.fingerprint, prepared.prompts, choices
                )
                renderer = self.dialect.renderer(body, Running(head, model, prepared, run.usage))
                if asked.stream:
                    return await Stream(run, prepared.parser, count, renderer, deadline, send).send_all()
                answers = await whole_answers(run, prepared.parser, count)
                await send_json(send, 200, renderer.whole(answers))
                return 200
