"""What comes of one request, event by event, whichever worker computes it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from headrace.backends.fingerprint import Fingerprint
from headrace.errors import HeadraceError
from headrace.worker.messages import Handoff, Submit, TokenEvent


class Stream:
    """An asynchronous iterator over a request's events; the last one has a finish reason.

    Raises RequestError where the worker rejects the request, WorkerDiedError where no worker can go on with
    it; events that came before are delivered before. For one consumer, who closes the stream when leaving
    early: `async with contextlib.aclosing(stream)`.
    """

    __slots__ = (
        "_cancel",
        "_ended",
        "_error",
        "_events",
        "_told",
        "_waiter",
        "cached",
        "fingerprint",
        "losses",
        "message",
        "model",
        "moves",
        "on_begun",
        "output",
        "waits",
    )

    def __init__(
        self, message: Submit, cancel: Callable[[str], object], *, model: str = "", moves: bool = True
    ) -> None:
        """`cancel` is called with the id when the stream is closed before its end."""
        self.message = message
        self.model = model
        """As its workers call it."""
        self.fingerprint: Fingerprint | None = None
        """Of the worker that began it."""
        self.waits = True
        """Whether the worker that has it has brought nothing yet."""
        self.moves = moves
        """Whether another worker goes on with it where the first one ends."""
        self.output: list[int] = []
        """Tokens delivered so far."""
        self.cached = 0
        """Tokens of its prompt that were found in a cache, as its first event told."""
        self.on_begun: Callable[[], None] | None = None
        """Called when what is prepared for it elsewhere is of no more use."""
        self.losses = 0
        """Workers in turn that ended before they brought it any further."""
        self._cancel = cancel
        self._events: deque[TokenEvent] = deque()
        self._ended = False
        self._error: HeadraceError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._told: Callable[[], None] | None = None

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def tokens(self) -> list[int]:
        """The prompt, and the output so far."""
        return [*self.message.prompt, *self.output]

    def rest(self, handoff: Handoff | None = None) -> Submit:
        """The message by which a worker computes what has not been delivered."""
        message = self.message
        if self.output:
            # What the prompt's tokens scored came with the first event.
            message = msgspec.structs.replace(message, output=list(self.output), prompt_logprobs=-1)
        return message if handoff is None else msgspec.structs.replace(message, handoff=handoff)

    def begun(self) -> None:
        """It has begun, or the worker that had it has it no more."""
        if self.on_begun is not None:
            told, self.on_begun = self.on_begun, None
            told()

    def when_ended(self, told: Callable[[], None]) -> None:
        """`told` is called, once, when the last event is here, though it may not have been read yet."""
        self._told = told

    def push(self, event: TokenEvent) -> None:
        """Adds an event. Nothing but a waiting consumer is woken, so bursts cost one wake-up."""
        self._events.append(event)
        self.output += event.token_ids
        self.losses = 0
        self.begun()  # nothing more is needed for its beginning
        self._ended = event.finish_reason is not None
        self._wake()

    def end(self, error: HeadraceError | None = None) -> None:
        """No more events will come."""
        self._ended = True
        self._error = error
        self._wake()

    async def aclose(self) -> None:
        """Cancels the request where it has not ended."""
        if not self._ended:
            self._cancel(self.id)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> TokenEvent:
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()

    def _wake(self) -> None:
        if self._ended and self._told is not None:
            told, self._told = self._told, None
            told()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
