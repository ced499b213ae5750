"""One model's try at a routed request: money set aside, begun, and accounted for when it has ended."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec

from headrace.errors import RequestError
from headrace.gateway.answering import Piece, Running
from headrace.gateway.asking import Asking
from headrace.gateway.openai.answers import Usage
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.routed.member import Member, Outcome, cost_of
from headrace.gateway.routed.route import Route
from headrace.routing.confidence import Told

_CALLER_LIMITS = frozenset({"rate_limit_exceeded", "draining"})
"""Refusals that are about who asks, or the whole server, not about the model."""
_CONNECTIONS = frozenset({"remote_unreachable", "remote_cut_off"})
_AT_ONCE_SECONDS = 1.0
_NOT_NOW = frozenset({402, 408, 429, 500, 502, 503})
"""Statuses that say nothing against the request; what it costs too much here is perhaps less elsewhere."""
_NOT_BY_THIS_MODEL = frozenset(
    {
        "context_length_exceeded",
        "no_chat_template",
        "model_not_loadable",
        "model_too_large",
        "unsupported_value",
    }
)


class Attempt:
    """Begun by `open`, in any task, and ended by `close`, in any other.

    What has come of the answer waits in `pieces` until it is taken.
    """

    def __init__(self, member: Member, asking: Asking, route: Route, number: int):
        self.member = member
        self.asking = asking
        self.candidate = route.candidates[member.name]
        self.number = number
        """Counted from 0 within the request."""
        self.running: Running | None = None
        self.pieces: deque[Piece] = deque()
        self.ended = False
        """The whole answer has come."""
        self.first_token: float | None = None
        """Seconds from its beginning."""
        self.first_at = 0.0
        """On time.monotonic's clock."""
        self.lost_connection = False
        """It failed with nothing said, and soon, as with a connection that was kept for too long."""
        self._closed = False
        self._accounts = route.accounts
        self._need = route.need
        self._foreseen = route.foreseen.get(member.name)
        self._stack = AsyncExitStack()
        self._began = 0.0
        self._expected = round(self.candidate.input_tokens + self.candidate.output_tokens)
        """Tokens of prompt and answer."""
        self._last = 0.0
        self._price = route.prices[member.name]

    @property
    def name(self) -> str:
        return self.member.name

    def reserve(self) -> None:
        """Sets the money aside, before it is opened; `close` settles. Raises OverBudget."""
        self._accounts.reserve(self.number, self.candidate)

    async def open(self, whole: bool) -> None:
        """Returns when the first piece is there; where it is to be `whole`, when all are.

        Raises what keeps the model from answering; then it is closed.
        """
        try:
            self._began = time.monotonic()
            self.member.began(self._began, self._expected)
            self._stack.callback(lambda: self.member.ended(time.monotonic(), self._expected, self.usage))
            self.running = await self._stack.enter_async_context(
                self.member.answer(self.asking, counted=self.number == 0)
            )
            while not self.ended and (whole or not self.pieces):
                await self._read()
        except BaseException as error:
            await self.close(error)
            raise

    async def next(self) -> Piece:
        """The next piece. Raises StopAsyncIteration at the end, and what breaks the answer off."""
        if not self.pieces:
            if not self.ended:
                await self._read()
            if not self.pieces:
                raise StopAsyncIteration
        return self.pieces.popleft()

    async def _read(self) -> None:
        assert self.running is not None
        try:
            piece = await self.running.run.__anext__()
        except StopAsyncIteration:
            self.ended = True
            return
        self._last = time.monotonic()
        if self.first_token is None and (piece[1] or piece[3] is not None):
            self.first_at, self.first_token = self._last, self._last - self._began
            self.member.answered(self._last)
        self.pieces.append(piece)

    async def close(self, error: BaseException | None = None) -> None:
        """Ends it, whatever is left of it, and settles what it cost."""
        if self._closed:
            return
        self._closed = True
        now = time.monotonic()
        usage = self.usage
        if error is not None and is_broken(error):
            soon = self.first_token is None and now - self._began < _AT_ONCE_SECONDS
            self.lost_connection = soon and getattr(error, "code", None) in _CONNECTIONS
            self.member.failed(now, error)
        elif self._began and (self.first_token is None or isinstance(error, RequestError)):
            self.member.said_nothing(now, error)
        if self.ended and usage is not None:
            tokens = usage.completion_tokens
            lasted = self._last - self.first_at
            self.member.learn(
                Outcome(
                    self._need,
                    self._foreseen if self.number == 0 else None,
                    usage.prompt_tokens,
                    usage.prompt_tokens_details.cached_tokens,
                    tokens,
                    "length" in self._reasons(),
                    self.first_token or 0.0,
                    self.asking.record.queue_seconds or 0.0,
                    lasted / (tokens - 1) if tokens > 1 else None,
                ),
                now,
            )
        try:
            # Who had let it in is to know that it was cut short: its length says nothing then.
            cut = error if error is not None or self.ended else asyncio.CancelledError()
            await self._stack.__aexit__(None if cut is None else type(cut), cut, None)
        finally:
            self._accounts.settle(self.number, self.cost)

    def _reasons(self) -> Sequence[str]:
        return () if self.running is None else self.running.run.finish_reasons

    @property
    def usage(self) -> Usage | None:
        """Tokens so far; None where it never began."""
        return None if self.running is None else self.running.run.usage()

    @property
    def cost(self) -> float:
        """What it has cost by now."""
        usage = self.usage
        return 0.0 if usage is None else cost_of(self._price, usage)

    def ask_for_confidence(self) -> None:
        """Before it is opened: has the log-probabilities come along, where the model can tell them."""
        request = self.asking.request
        if self.member.tells_logprobs and isinstance(request, ChatRequest) and not request.logprobs:
            request = msgspec.structs.replace(request, logprobs=True, top_logprobs=None)
            self.asking = dataclasses.replace(self.asking, request=request)

    def told(self, next_good: float) -> Told:
        """What the whole answer says of how sure the model was; `next_good`: the next model's chance."""
        assert self.running is not None
        told = [event for _, _, event, _ in self.pieces if event.logprobs]
        logprobs = [chosen for event in told for chosen, *_ in event.logprobs]
        text = self.running.token_bytes
        tokens = [text(token).decode("utf-8", "replace") for event in told for token in event.token_ids]
        reasons = [reason for *_, reason in self.pieces if reason is not None]
        return Told(tokens, logprobs, reasons[-1] if reasons else "", self.candidate.good, next_good)


def is_elsewhere(error: BaseException) -> bool:
    """Whether another model may well answer where this is what one failed with."""
    if not isinstance(error, RequestError):
        return isinstance(error, Exception)
    known = getattr(error, "elsewhere", None)
    if known is not None:
        return bool(known)
    if error.code in _CALLER_LIMITS:
        return False
    return error.status in _NOT_NOW or error.code in _NOT_BY_THIS_MODEL


def is_broken(error: BaseException) -> bool:
    """Whether it counts against the model that it failed so."""
    if isinstance(error, RequestError):
        return bool(getattr(error, "broken", False))
    return isinstance(error, Exception)
