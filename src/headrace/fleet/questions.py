"""Questions that a worker is asked: each is one message, and has one answer, or ends with the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.engine.stats import EngineStats
from headrace.errors import HeadraceError, RequestError
from headrace.worker.messages import Answer, Cancel, Ping, Question, ToWorker


class Questions:
    """Those that a replica's worker has not answered yet; it is asked for its figures among them."""

    def __init__(self, send: Callable[[ToWorker], None]) -> None:
        """`send` brings the worker a message."""
        self._send = send
        self._open: dict[str, asyncio.Future[Answer]] = {}
        self._pinged: asyncio.Future[None] | None = None
        self.stats: EngineStats | None = None
        """The worker's latest figures; None before it told any."""

    def __len__(self) -> int:
        """But for that after figures."""
        return len(self._open)

    async def ask(self, question: Question) -> Answer:
        """The answer to a question of a new id. Raises what `rejected` and `abandon` say."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[question.id] = answer
        self._send(question)
        try:
            return await answer
        except asyncio.CancelledError:
            self._send(Cancel(question.id))
            raise
        finally:
            self._open.pop(question.id, None)

    async def ping(self, timeout: float) -> bool:
        """Whether the worker tells its figures within so many seconds, or has ended."""
        if self._pinged is None:
            self._pinged = asyncio.get_running_loop().create_future()
            self._send(Ping())
        answered, _ = await asyncio.wait([self._pinged], timeout=timeout)
        return bool(answered)

    def answered(self, answer: Answer) -> None:
        """The worker's answer to one of them, or to one that nobody waits for any more."""
        if (question := self._open.get(answer.id)) and not question.done():
            question.set_result(answer)

    def rejected(self, question_id: str, reason: str) -> None:
        """The worker rejects one of them; nothing happens where there is none of that id."""
        if (question := self._open.get(question_id)) and not question.done():
            question.set_exception(RequestError(reason))

    def told(self, stats: EngineStats) -> None:
        """The worker's figures."""
        self.stats = stats
        self._end_ping()

    def abandon(self, error: HeadraceError) -> None:
        """The worker has ended: whoever waits for an answer gets the error."""
        for question in self._open.values():
            if not question.done():
                question.set_exception(error)
        self.stats = None
        self._end_ping()

    def _end_ping(self) -> None:
        if self._pinged and not self._pinged.done():
            self._pinged.set_result(None)
        self._pinged = None
