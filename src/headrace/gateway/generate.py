"""The two endpoints that generate: read, check, admit, run, and answer at once or as a stream."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError, RequestError
from headrace.gateway.answers import Envelope
from headrace.gateway.body import ClientGoneError, decode, read_body
from headrace.gateway.connection import send_error, send_json, while_connected
from headrace.gateway.dialects import ChatDialect, CompletionDialect, Dialect
from headrace.gateway.errors import internal, unavailable
from headrace.gateway.parameters import submits
from headrace.gateway.prompts import encode_messages, encode_prompt, split_prompts
from headrace.gateway.request_log import RequestRecord
from headrace.gateway.requests import ChatRequest, CompletionRequest, GenerationRequest, refuse_unserved
from headrace.gateway.run import Run
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway
from headrace.gateway.stream import Stream, whole_answer

CLIENT_GONE = 499
"""What the metrics call a request whose client did not wait for the answer (after nginx)."""

Request = TypeVar("Request", bound=GenerationRequest)


class GenerateEndpoint(ABC, Generic[Request]):
    """An ASGI application for one path."""

    def __init__(self, gateway: Gateway, request_type: type[Request]):
        self.gateway = gateway
        self._decoder = msgspec.json.Decoder(request_type)

    @abstractmethod
    def sequences(self, request: Request) -> int:
        """How many sequences the request runs."""

    @abstractmethod
    def dialect(self, model: ServedModel, request: Request) -> Dialect:
        """How its answer looks."""

    @abstractmethod
    def top_logprobs(self, request: Request) -> int:
        """How many log-probabilities a token is to have besides its own, -1 for none at all."""

    @abstractmethod
    async def prompts(self, model: ServedModel, request: Request) -> list[list[int]]:
        """The tokens of each of its sequences."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500
        record = RequestRecord(scope["path"])
        try:
            status = await self._serve(scope, receive, send, record)
        except ClientGoneError:
            status = CLIENT_GONE
        except RequestError as error:
            status = error.status
            await send_error(send, error)
        except HeadraceError as error:
            status = 503
            await send_error(send, unavailable(error))
        except Exception as error:
            await send_error(send, internal(error))
        finally:
            self.gateway.metrics.requests.labels(record.path, str(status)).inc()
            if self.gateway.log_request is not None:
                self.gateway.log_request(record.line(status))

    async def _serve(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> int:
        body = await read_body(scope, receive, self.gateway.max_body_bytes)
        request = decode(self._decoder, body)
        model = self.gateway.model(request.model)
        refuse_unserved(request)
        top_logprobs = self.top_logprobs(request)
        dialect = self.dialect(model, request)
        answer_id = record.id = dialect.id_prefix + secrets.token_hex(12)
        async with while_connected(receive):
            with self.gateway.admission.admit(self.sequences(request)) as seat:
                prompts = await self.prompts(model, request)
                work = submits(answer_id, model, request, prompts, top_logprobs)
                run = record.run = Run(model, work, seat, self.gateway.metrics, record.arrived)
                envelope = Envelope(answer_id, "", int(time.time()), model.name, model.fingerprint, [])
                if request.stream:
                    return await Stream(run, dialect, envelope, request, send).send_all()
                await send_json(send, 200, await whole_answer(run, dialect, envelope, len(work)))
                return 200


class ChatEndpoint(GenerateEndpoint[ChatRequest]):
    """POST /v1/chat/completions"""

    def __init__(self, gateway: Gateway):
        super().__init__(gateway, ChatRequest)

    def sequences(self, request: ChatRequest) -> int:
        return 1

    def dialect(self, model: ServedModel, request: ChatRequest) -> Dialect:
        return ChatDialect(model.prompter, bool(request.logprobs))

    def top_logprobs(self, request: ChatRequest) -> int:
        if request.logprobs:
            return request.top_logprobs or 0
        if request.top_logprobs:
            raise RequestError("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
        return -1

    async def prompts(self, model: ServedModel, request: ChatRequest) -> list[list[int]]:
        return [await encode_messages(model, request)]


class CompletionEndpoint(GenerateEndpoint[CompletionRequest]):
    """POST /v1/completions"""

    def __init__(self, gateway: Gateway):
        super().__init__(gateway, CompletionRequest)

    def sequences(self, request: CompletionRequest) -> int:
        return len(split_prompts(request))

    def dialect(self, model: ServedModel, request: CompletionRequest) -> Dialect:
        return CompletionDialect(model.prompter, request.logprobs is not None)

    def top_logprobs(self, request: CompletionRequest) -> int:
        return -1 if request.logprobs is None else request.logprobs

    async def prompts(self, model: ServedModel, request: CompletionRequest) -> list[list[int]]:
        prompts = split_prompts(request)
        several = len(prompts) > 1
        fields = [f"prompt[{i}]" if several else "prompt" for i in range(len(prompts))]
        return [
            await encode_prompt(model, prompt, field) for prompt, field in zip(prompts, fields, strict=True)
        ]
