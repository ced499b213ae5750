"""An answer on its way to the client: whole, or piece by piece."""

from __future__ import annotations

from starlette.types import Send

from headrace.gateway.answering import Answer, Answering, Renderer, Running
from headrace.gateway.deadline import Deadline
from headrace.gateway.errors import as_request_error


async def whole_answers(run: Answering, sequences: int) -> list[Answer]:
    """The answers of all sequences, once they have ended."""
    answers = [Answer() for _ in range(sequences)]
    async for index, parts, event, reason in run:
        answer = answers[index]
        answer.add(parts, event)
        answer.finish_reason = reason or answer.finish_reason
        answer.stop_string = event.stop_string
    return answers


class Stream:
    """Sends an answer's pieces as they come, in the renderer's words."""

    def __init__(self, running: Running, renderer: Renderer, deadline: Deadline, send: Send):
        self._running = running
        self._renderer = renderer
        self._deadline = deadline
        self._send = send

    async def send_all(self) -> int:
        """Sends everything and gives the status for the metrics.

        The response begins with the first event, so that what fails before it still gets a status of its own.
        An error later than that is told in the stream.
        """
        began = False
        try:
            # Within the stream the deadline raises here, so that the client can be told in it.
            async with self._deadline:
                async for index, parts, event, reason in self._running.run:
                    data = self._renderer.piece(index, parts, event, reason)
                    if not began:
                        began = True
                        await self._begin()
                    if data:
                        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            if not began:
                raise
            told = as_request_error(error)
            await self._send({"type": "http.response.body", "body": self._renderer.failed(told)})
            return told.status
        await self._send({"type": "http.response.body", "body": self._renderer.end()})
        return 200

    async def _begin(self) -> None:
        headers = [
            (b"content-type", self._renderer.content_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # else nginx holds chunks back
            *self._running.headers,
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
