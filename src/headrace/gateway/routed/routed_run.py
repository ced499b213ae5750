"""A routed answer as its client gets it, whoever speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.gateway.answering import Answering, Piece
from headrace.gateway.openai.answers import Usage
from headrace.gateway.routed.attempt import Attempt
from headrace.models.answer import Text

if TYPE_CHECKING:
    from headrace.gateway.routed.execution import Execution


class RoutedRun(Answering):
    """The pieces of whoever speaks."""

    def __init__(self, execution: Execution, attempt: Attempt):
        self._execution = execution
        self._attempt = attempt
        self._text: list[str] | None = []
        """What came so far; None where nobody could take it up."""

    def __aiter__(self) -> RoutedRun:
        return self

    async def __anext__(self) -> Piece:
        try:
            piece = await self._attempt.next()
        except StopAsyncIteration:
            self._execution.complete = True
            raise
        except Exception as error:
            try:
                self._attempt = await self._execution.go_on(self._attempt, error, self.text)
            except Exception as why:
                self._execution.broken_off = why
                raise
            piece = await self._attempt.next()
        if self._text is not None:
            for part in piece[1]:
                if not isinstance(part, Text):
                    self._text = None
                    break
                self._text.append(part.text)
        return piece

    @property
    def text(self) -> str | None:
        """All that has come; None where it is not text alone."""
        return None if self._text is None else "".join(self._text)

    def usage(self) -> Usage:
        """Of the answer that the client gets; with the route, whose cost counts what others tried, too."""
        runs = [attempt.running.run.usage() for attempt in self._execution.spoken if attempt.running]
        prompt, generated = runs[0].prompt_tokens, sum(usage.completion_tokens for usage in runs)
        details = runs[0].prompt_tokens_details
        return Usage(
            prompt, generated, prompt + generated, details, self._execution.report(self._execution.cost)
        )

    @property
    def ttft(self) -> float | None:
        """Seconds from the request's arrival."""
        first = self._execution.spoken[0]
        if first.first_token is None:
            return None
        return first.first_at - self._execution.route.asking.record.arrived

    @property
    def finish_reasons(self) -> list[str]:
        """Of the sequences that have ended."""
        assert self._attempt.running is not None
        return list(self._attempt.running.run.finish_reasons)
