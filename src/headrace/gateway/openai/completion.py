"""How an answer looks at POST /v1/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.errors import RequestError
from headrace.gateway.answering import Answer, AnswerHead
from headrace.gateway.openai.answers import CompletionChoice, CompletionLogprobs, Usage
from headrace.gateway.openai.chunks import Envelopes
from headrace.gateway.openai.logprobs import CompletionLogprobsOf, TokenBytes
from headrace.gateway.openai.requests import CompletionRequest
from headrace.models.answer import AnswerPart, Text
from headrace.worker.messages import TokenEvent


class CompletionRenderer:
    """Writes bodies and chunks of text completions."""

    content_type = Envelopes.content_type

    def __init__(
        self,
        head: AnswerHead,
        request: CompletionRequest,
        usage: Callable[[], Usage],
        token_bytes: TokenBytes,
        texts: Sequence[str],
    ):
        """`texts` are the prompts as text, for the echo."""
        self._head = head
        self._echo = bool(request.echo)
        self._silent = request.max_tokens == 0  # a token was computed, but none was asked for
        self._with_logprobs = request.logprobs is not None
        self._texts = texts
        count = len(head.prompts) * head.choices
        self._logprobs = [CompletionLogprobsOf(token_bytes) for _ in range(count)]
        self._opened: set[int] = set()
        self._out = Envelopes(
            head,
            request,
            self._without_output(usage) if self._silent else usage,
            whole_object="text_completion",
            chunk_object="text_completion",
        )

    def whole(self, answers: Sequence[Answer]) -> bytes:
        return self._out.whole([self._choice(index, answer) for index, answer in enumerate(answers)])

    def piece(self, index: int, parts: Sequence[AnswerPart], event: TokenEvent, reason: str | None) -> bytes:
        chunks = []
        if index not in self._opened:
            self._opened.add(index)
            if self._echo:
                echoed = CompletionChoice(
                    index, self._prompt_text(index), None, self._of_prompt(index, event)
                )
                chunks.append(self._out.chunk(echoed))
        text = "".join(part.text for part in parts if isinstance(part, Text))
        if (text or event.logprobs) and not self._silent:
            chunks.append(self._out.chunk(CompletionChoice(index, text, None, self._of(index, [event]))))
        if reason is not None:
            chunks.append(self._out.chunk(CompletionChoice(index, "", reason)))
        return b"".join(chunks)

    def end(self) -> bytes:
        return self._out.end()

    def failed(self, error: RequestError) -> bytes:
        return self._out.failed(error)

    def _choice(self, index: int, answer: Answer) -> CompletionChoice:
        text, logprobs = answer.text, None
        if self._silent:
            text, answer = "", replace(answer, events=answer.events[:1])
        if self._echo:
            text = self._prompt_text(index) + text
            logprobs = self._of_prompt(index, answer.events[0])
        if not self._silent:
            logprobs = _joined(logprobs, self._of(index, answer.events))
        return CompletionChoice(index, text, answer.finish_reason, logprobs)

    def _prompt_text(self, index: int) -> str:
        return self._texts[index // self._head.choices]

    def _of_prompt(self, index: int, first: TokenEvent) -> CompletionLogprobs | None:
        if not self._with_logprobs:
            return None
        prompt = self._head.prompts[index // self._head.choices]
        return self._logprobs[index].of_prompt(prompt, first.prompt_logprobs)

    def _of(self, index: int, events: Sequence[TokenEvent]) -> CompletionLogprobs | None:
        return self._logprobs[index].of(events) if self._with_logprobs else None

    @staticmethod
    def _without_output(usage: Callable[[], Usage]) -> Callable[[], Usage]:
        def reported() -> Usage:
            known = usage()
            return Usage(known.prompt_tokens, 0, known.prompt_tokens, known.prompt_tokens_details)

        return reported


def _joined(first: CompletionLogprobs | None, then: CompletionLogprobs | None) -> CompletionLogprobs | None:
    if first is None or then is None:
        return first or then
    return CompletionLogprobs(
        first.tokens + then.tokens,
        first.token_logprobs + then.token_logprobs,
        first.top_logprobs + then.top_logprobs,
        first.text_offset + then.text_offset,
    )
