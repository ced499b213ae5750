"""How an answer looks at POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from headrace.errors import RequestError
from headrace.gateway.answering import Answer, AnswerHead, Call
from headrace.gateway.json_line import encode
from headrace.gateway.openai.answers import (
    CalledFunction,
    ChatAnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from headrace.gateway.openai.chunks import Envelopes
from headrace.gateway.openai.logprobs import TokenBytes, chat_logprobs
from headrace.gateway.openai.requests import ChatRequest
from headrace.models.answer import AnswerPart, CallArguments, CallStart, Reasoning, Text
from headrace.worker.messages import TokenEvent

_SLOT = "\ue000slot"
"""Where a chunk's text goes in the pattern of one."""


class ChatRenderer:
    """Writes bodies and chunks of chat completions."""

    content_type = Envelopes.content_type

    def __init__(
        self, head: AnswerHead, request: ChatRequest, usage: Callable[[], Usage], token_bytes: TokenBytes
    ):
        self._out = Envelopes(
            head, request, usage, whole_object="chat.completion", chunk_object="chat.completion.chunk"
        )
        self._token_bytes = token_bytes
        self._logprobs = bool(request.logprobs)
        self._opened: set[int] = set()
        self._patterns: dict[int, tuple[bytes, bytes]] = {}

    def whole(self, answers: Sequence[Answer]) -> bytes:
        return self._out.whole([self._choice(index, answer) for index, answer in enumerate(answers)])

    def piece(self, index: int, parts: Sequence[AnswerPart], event: TokenEvent, reason: str | None) -> bytes:
        chunks = []
        if index not in self._opened:
            self._opened.add(index)
            chunks.append(self._chunk(index, ChatDelta(role="assistant", content="")))
        logprobs = chat_logprobs([event], self._token_bytes) if self._logprobs and event.logprobs else None
        for part in parts or ((Text(""),) if logprobs is not None else ()):
            if isinstance(part, Text) and logprobs is None and not self._out.usage_everywhere:
                chunks.append(self._text(index, part.text))
            else:
                chunks.append(self._chunk(index, _delta(part), logprobs=logprobs))
            logprobs = None  # of all the event's tokens, with its first part
        if reason is not None:
            chunks.append(self._chunk(index, ChatDelta(), reason))
        return b"".join(chunks)

    def end(self) -> bytes:
        return self._out.end()

    def failed(self, error: RequestError) -> bytes:
        return self._out.failed(error)

    def _choice(self, index: int, answer: Answer) -> ChatChoice:
        message = ChatAnswerMessage(
            content=None if answer.calls and not answer.text else answer.text,
            reasoning_content=answer.reasoning or UNSET,
            tool_calls=[_tool_call(call) for call in answer.calls] or UNSET,
        )
        logprobs = chat_logprobs(answer.events, self._token_bytes) if self._logprobs else None
        return ChatChoice(index, message, answer.finish_reason, logprobs)

    def _chunk(
        self, index: int, delta: ChatDelta, reason: str | None = None, logprobs: ChatLogprobs | None = None
    ) -> bytes:
        return self._out.chunk(ChatChunkChoice(index, delta, reason, logprobs))

    def _text(self, index: int, text: str) -> bytes:
        """A chunk with text alone, as most are: only the text differs, so only it is encoded."""
        pattern = self._patterns.get(index)
        if pattern is None:
            chunk = self._chunk(index, ChatDelta(content=_SLOT))
            before, after = chunk.split(encode(_SLOT))
            pattern = self._patterns[index] = before, after
        return pattern[0] + encode(text) + pattern[1]


def _delta(part: AnswerPart) -> ChatDelta:
    match part:
        case Text(text=text):
            return ChatDelta(content=text)
        case Reasoning(text=text):
            return ChatDelta(reasoning_content=text)
        case CallStart(index=index, name=name):
            call = Call(name)
            function = CalledFunction("", name)
            return ChatDelta(tool_calls=[ToolCallDelta(index, function, call.id, "function")])
        case CallArguments(index=index, text=text):
            return ChatDelta(tool_calls=[ToolCallDelta(index, CalledFunction(text))])


def _tool_call(call: Call) -> ToolCall:
    return ToolCall(call.id, CalledFunction(call.arguments, call.name))
