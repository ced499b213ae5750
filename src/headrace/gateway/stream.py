"""A run's answer on its way to the client: whole, or event by event."""

from __future__ import annotations

from contextlib import aclosing

from starlette.types import Send

from headrace.gateway.answers import DONE, Choice, Envelope, encode, server_sent_event
from headrace.gateway.dialects import Dialect
from headrace.gateway.errors import as_request_error, error_json
from headrace.gateway.requests import GenerationRequest
from headrace.gateway.run import Run
from headrace.worker.messages import TokenEvent

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # else nginx holds chunks back
]


async def whole_answer(run: Run, dialect: Dialect, envelope: Envelope, sequences: int) -> bytes:
    """The whole answer as JSON, once all sequences have ended."""
    events: list[list[TokenEvent]] = [[] for _ in range(sequences)]
    async with aclosing(run.events()) as stream:
        async for index, event in stream:
            events[index].append(event)
    envelope.object = dialect.whole_object
    envelope.choices = [dialect.whole(index, of_one) for index, of_one in enumerate(events)]
    envelope.usage = run.usage()
    return encode(envelope)


class Stream:
    """Sends a run's events as they come, as server-sent events."""

    def __init__(
        self, run: Run, dialect: Dialect, envelope: Envelope, request: GenerationRequest, send: Send
    ):
        self._run = run
        self._dialect = dialect
        self._envelope = envelope
        self._send = send
        options = request.stream_options
        self._with_usage = options is not None and bool(options.include_usage)
        self._usage_everywhere = options is not None and bool(options.continuous_usage_stats)
        self._opened: set[int] = set()
        envelope.object = dialect.chunk_object
        if self._with_usage:
            envelope.usage = None

    async def send_all(self) -> int:
        """Sends everything and gives the status for the metrics.

        The response begins with the first event, so that what fails before it still gets a status of its own.
        An error later than that is the stream's last event; no [DONE] follows it.
        """
        try:
            async with aclosing(self._run.events()) as events:
                async for index, event in events:
                    data = self._chunks(index, event)
                    if not self._opened:
                        await self._send(
                            {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
                        )
                    self._opened.add(index)
                    if data:
                        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            if not self._opened:
                raise
            told = as_request_error(error)
            await self._send({"type": "http.response.body", "body": server_sent_event(error_json(told))})
            return told.status
        await self._send({"type": "http.response.body", "body": self._end()})
        return 200

    def _chunks(self, index: int, event: TokenEvent) -> bytes:
        choices: list[Choice] = []
        if index not in self._opened and (opening := self._dialect.opening(index)) is not None:
            choices.append(opening)
        if event.text or event.logprobs:
            choices.append(self._dialect.piece(index, event))
        if event.finish_reason is not None:
            choices.append(self._dialect.closing(index, event.finish_reason))
        if self._usage_everywhere:
            self._envelope.usage = self._run.usage()
        return b"".join([self._chunk([choice]) for choice in choices])

    def _chunk(self, choices: list[Choice]) -> bytes:
        self._envelope.choices = choices
        return server_sent_event(encode(self._envelope))

    def _end(self) -> bytes:
        if not self._with_usage:
            return DONE
        self._envelope.usage = self._run.usage()
        return self._chunk([]) + DONE
