"""One answer of a remote model while it comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from headrace.gateway.answering import Piece
from headrace.gateway.openai.answers import PromptTokensDetails, Usage
from headrace.gateway.remotes.errors import RemoteError, cut_off, garbage, timed_out
from headrace.gateway.remotes.parts import Parts
from headrace.gateway.remotes.sse import EventParser, EventTooLongError
from headrace.gateway.remotes.tally import Reported, Tally
from headrace.gateway.remotes.watch import Watch
from headrace.routing.tables import ModelTable

if TYPE_CHECKING:
    from headrace.gateway.remotes.connections import Response

_BYTES_PER_TOKEN = 4096
_SLACK = 2**20
"""A stream may have so many bytes, and so many for each token: chunks are mostly not text."""
_LAST_WORDS = 2.0
"""Seconds within which usage and the stream's end follow the end of the answer."""


class Stream(Protocol):
    """Reads an API's events."""

    done: bool
    """The stream said that it has ended."""

    def take(self, data: bytes | bytearray) -> list[Piece]:
        """What an event adds. Raises RemoteError."""
        ...

    def reported(self) -> Reported | None:
        """The usage, where the remote has told it."""
        ...


class RemoteRun:
    """Iterates over the answer's pieces. No two tasks at once, but any: nothing here belongs to a task.

    The piece with a choice's end is kept back until the usage is known, which follows at once.
    """

    def __init__(
        self,
        name: str,
        response: Response,
        check: Callable[[Response], Awaitable[Response | None]],
        stream: Stream,
        parts: Parts,
        tally: Tally,
        patience: ModelTable,
        asked_at: float,
    ):
        """`asked_at` is on the loop's clock.

        `check` looks at how the response begins. It raises RemoteError, or gives a response to take instead.
        """
        self._name = name
        self._response = response
        self._check = check
        self._accepted = False
        """The remote has begun to answer, and not with a refusal."""
        self._stream = stream
        self._parts = parts
        self._tally = tally
        self._patience = patience
        self._asked_at = asked_at
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(self._loop, self._stalled)
        self._events = EventParser()
        self._bytes_left = _SLACK + tally.most_tokens * _BYTES_PER_TOKEN
        self._ready: deque[Piece] = deque()
        self._ends: list[Piece] = []
        self._over = False
        self._whole = False
        """The stream was read to its end, and nothing failed."""
        self._delivered = False
        self._failed: RemoteError | None = None
        """To be raised once what came before it is delivered."""
        self.ttft: float | None = None
        """Seconds from the question to the answer's first part."""

    def token_bytes(self, number: int) -> bytes:
        """What a token stands for that came with log-probabilities."""
        assert self._parts.vocabulary is not None
        return self._parts.vocabulary.token_bytes(number)

    @property
    def finish_reasons(self) -> list[str]:
        """Of the choices that have ended."""
        return self._parts.finish_reasons

    @property
    def usage_believed(self) -> bool:
        """The remote has told its usage, and it is possible; else `usage` is an estimate."""
        self._tally.reported = self._stream.reported()
        return self._tally.believed

    def usage(self) -> Usage:
        """Tokens so far, checked; none of what was refused."""
        if not self._accepted:
            return Usage(0, 0, 0, PromptTokensDetails(0))
        self._tally.reported = self._stream.reported()
        return self._tally.usage()

    def __aiter__(self) -> RemoteRun:
        return self

    async def __anext__(self) -> Piece:
        """The next piece. Raises RemoteError."""
        if not self._ready and not self._over:
            await self._wait()
        if self._ready:
            self._delivered = True
            return self._ready.popleft()
        if self._failed is not None:
            raise self._failed
        raise StopAsyncIteration

    async def _wait(self) -> None:
        """Reads until there is a piece, or the end."""
        self._begin_to_wait()
        try:
            if not self._accepted:
                await self._begin()
            while not self._ready and not self._over:
                self._take(await self._response.read())
        except RemoteError as error:
            self._response.close()
            self._fail(error)
        finally:
            self._watch.rest()

    async def _begin(self) -> None:
        """Returns once the response is one that was hoped for."""
        await self._response.begun()
        while (instead := await self._check(self._response)) is not None:
            self._response = instead
            await instead.begun()
        self._accepted = True

    def _fail(self, error: RemoteError) -> None:
        """What breaks once the answer is complete spoils nothing; of an answer not begun nothing is told."""
        self._over = True
        if self._parts.ended:
            self._ready.extend(self._ends)
            return
        error.began = self._delivered
        self._failed = error
        if not self._delivered:
            self._ready.clear()

    def _begin_to_wait(self) -> None:
        """After the first part, a sign of life keeps a stream going for the longer of both limits."""
        if self._parts.ended:
            self._watch.wait("did not end its stream", _LAST_WORDS, self._loop.time())
            return
        if self.ttft is None:
            first = self._patience.first_token_timeout
            self._watch.wait("did not begin its answer", first, self._asked_at)
            return
        idle = self._patience.idle_timeout
        longest = max(idle, self._patience.first_token_timeout)
        self._watch.wait("sent no more of its answer", longest, self._loop.time(), idle)

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            self._end()
            return
        self._bytes_left -= len(chunk)
        lines, had_ended = self._events.lines, self._parts.ended
        try:
            events = self._events.feed(chunk)
        except EventTooLongError:
            raise garbage(self._name, "an event that is far too long") from None
        if self._bytes_left < 0:
            raise garbage(self._name, "far more than its answer can need")
        if self._events.lines > lines:
            self._watch.came()
        for data in events:
            self._sort(self._stream.take(data))
            if self._stream.done:
                self._end()
                return
        if self._parts.ended and not had_ended:
            self._begin_to_wait()

    def _sort(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece[3] is not None:
                self._ends.append(piece)
                continue
            if self.ttft is None:
                self.ttft = self._loop.time() - self._asked_at
            self._ready.append(piece)

    def _end(self) -> None:
        if not self._parts.ended:
            raise cut_off(self._name)
        self._over = self._whole = True
        self._ready.extend(self._ends)

    def _stalled(self, words: str, seconds: float) -> None:
        self._response.fail(timed_out(self._name, words, seconds))

    async def leave(self, orderly: bool) -> None:
        """Gives the connection back, where the whole answer was read; else closes it."""
        self._watch.stop()
        if orderly and self._whole:
            await self._response.settle()
        else:
            self._response.close()
