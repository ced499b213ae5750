"""How answers look at /api/chat and /api/generate: one JSON object, or one on every line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headrace.errors import RequestError
from headrace.gateway.answering import Answer, Answering, Call
from headrace.gateway.field_names import in_own_names
from headrace.gateway.json_line import encode
from headrace.gateway.ollama.durations import timestamp
from headrace.gateway.openai.answers import TokenLogprob
from headrace.gateway.openai.logprobs import TokenBytes, chat_logprobs
from headrace.gateway.route_report import RouteReport
from headrace.models.answer import AnswerPart, CallArguments, CallStart, Reasoning, Text
from headrace.worker.messages import TokenEvent

_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")
_NAMES = {name: f"options.{name}" for name in _OPTIONS} | {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "reasoning_effort": "think",
}
"""Of fields in OpenAI's words."""


class CalledFunction(Struct):
    name: str
    arguments: dict[str, Any]


class ToolCall(Struct):
    function: CalledFunction


class Message(Struct):
    content: str = ""
    role: str = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Body(Struct):
    """A whole answer, or a piece of one. Durations in nanoseconds."""

    model: str
    created_at: str
    message: Message | UnsetType = UNSET
    """At /api/chat."""
    response: str | UnsetType = UNSET
    """At /api/generate, as `thinking`."""
    thinking: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    headrace: RouteReport | UnsetType = UNSET
    """Of a routed request."""


def error_json(error: RequestError) -> bytes:
    """An error as Ollama's clients expect it; the message alone names the field."""
    return encode({"error": str(in_own_names(error, _NAMES))})


def without_text(model: str, chats: bool, reason: str) -> bytes:
    """The answer to a request that only loads or unloads a model."""
    body = Body(model, timestamp(time.time()), done=True, done_reason=reason)
    if chats:
        body.message = Message()
    else:
        body.response = ""
    return encode(body) + b"\n"


class OllamaRenderer:
    """Writes one sequence's answer. `arrived` is on time.monotonic's clock."""

    content_type = b"application/x-ndjson"

    def __init__(
        self,
        model: str,
        *,
        chats: bool,
        arrived: float,
        run: Answering,
        token_bytes: TokenBytes | None,
    ):
        """`model` answers, as the client named it; `token_bytes` where log-probabilities are asked for."""
        self._model = model
        self._chats = chats
        self._arrived = arrived
        self._began = time.monotonic()
        self._run = run
        self._token_bytes = token_bytes
        self._call: Call | None = None
        """One whose arguments are still being written: a call is sent once it is complete."""
        self._reason = "stop"

    def whole(self, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        calls = [called for call in answer.calls if (called := _complete(call)) is not None]
        body = self._body(answer.text, answer.reasoning, calls, self._logprobs(answer.events))
        return encode(self._finished(body, answer.finish_reason))

    def piece(self, index: int, parts: Sequence[AnswerPart], event: TokenEvent, reason: str | None) -> bytes:
        lines = []
        logprobs = self._logprobs([event])
        for part in parts:
            if (body := self._part(part, logprobs)) is not None:
                lines.append(body)
                logprobs = UNSET
        if reason is not None:
            self._reason = reason
            lines += self._last_call()
        if logprobs is not UNSET and event.token_ids:
            lines.insert(0, self._body("", "", [], logprobs))
        return b"".join(encode(line) + b"\n" for line in lines)

    def end(self) -> bytes:
        return encode(self._finished(self._body("", "", [], UNSET), self._reason)) + b"\n"

    def failed(self, error: RequestError) -> bytes:
        return error_json(error) + b"\n"

    def _part(self, part: AnswerPart, logprobs: list[TokenLogprob] | UnsetType) -> Body | None:
        match part:
            case Text(text=text):
                return self._body(text, "", [], logprobs)
            case Reasoning(text=text):
                return self._body("", text, [], logprobs)
            case CallStart(name=name):
                (before,) = self._last_call() or (None,)
                self._call = Call(name)
                return before
            case CallArguments(text=text):
                assert self._call is not None
                self._call.arguments += text
                return None

    def _last_call(self) -> list[Body]:
        called = None if self._call is None else _complete(self._call)
        self._call = None
        return [] if called is None else [self._body("", "", [called], UNSET)]

    def _body(
        self, text: str, thinking: str, calls: list[ToolCall], logprobs: list[TokenLogprob] | UnsetType
    ) -> Body:
        body = Body(self._model, timestamp(time.time()), logprobs=logprobs)
        if self._chats:
            body.message = Message(text, thinking=thinking or UNSET, tool_calls=calls or UNSET)
        else:
            body.response, body.thinking = text, thinking or UNSET
        return body

    def _finished(self, body: Body, reason: str) -> Body:
        now, usage, ttft = time.monotonic(), self._run.usage(), self._run.ttft
        first = now if ttft is None else min(now, self._arrived + ttft)
        began = min(self._began, first)  # a route may have had the whole answer before
        body.done, body.done_reason = True, "length" if reason == "length" else "stop"
        body.total_duration = _ns(now - self._arrived)
        body.load_duration = _ns(began - self._arrived)
        body.prompt_eval_count, body.prompt_eval_duration = usage.prompt_tokens, _ns(first - began)
        body.eval_count, body.eval_duration = usage.completion_tokens, _ns(now - first)
        body.headrace = usage.headrace
        return body

    def _logprobs(self, events: Sequence[TokenEvent]) -> list[TokenLogprob] | UnsetType:
        if self._token_bytes is None:
            return UNSET
        return chat_logprobs(events, self._token_bytes).content


def _complete(call: Call) -> ToolCall | None:
    """The call with its arguments as an object; None where the answer was cut short within them."""
    try:
        arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    return ToolCall(CalledFunction(call.name, arguments))


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
