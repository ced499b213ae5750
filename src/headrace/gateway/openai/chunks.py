"""What OpenAI's two streams have in common: the envelope, usage on request, the end."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import RequestError
from headrace.gateway.answering import AnswerHead
from headrace.gateway.errors import error_json
from headrace.gateway.json_line import encode
from headrace.gateway.openai.answers import DONE, Choice, Envelope, Usage, server_sent_event
from headrace.gateway.openai.requests import GenerationRequest


class Envelopes:
    """Puts choices into bodies and chunks."""

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(
        self,
        head: AnswerHead,
        request: GenerationRequest,
        usage: Callable[[], Usage],
        *,
        whole_object: str,
        chunk_object: str,
    ):
        self._usage = usage
        self._whole_object = whole_object
        options = request.stream_options
        self._with_usage = options is not None and bool(options.include_usage)
        self.usage_everywhere = options is not None and bool(options.continuous_usage_stats)
        self._envelope = Envelope(head.id, chunk_object, head.created, head.model, head.fingerprint, [])
        if self._with_usage:
            self._envelope.usage = None

    def whole(self, choices: list[Choice]) -> bytes:
        """A body."""
        self._envelope.object = self._whole_object
        self._envelope.choices = choices
        self._envelope.usage = self._usage()
        return encode(self._envelope)

    def chunk(self, choice: Choice) -> bytes:
        """A chunk of a stream."""
        self._envelope.choices = [choice]
        if self.usage_everywhere:
            self._envelope.usage = self._usage()
        return server_sent_event(encode(self._envelope))

    def end(self) -> bytes:
        """The last words of a stream."""
        if not self._with_usage:
            return DONE
        self._envelope.choices = []
        self._envelope.usage = self._usage()
        return server_sent_event(encode(self._envelope)) + DONE

    def failed(self, error: RequestError) -> bytes:
        """The last words of a stream that broke off; no [DONE] follows."""
        return server_sent_event(error_json(error))
