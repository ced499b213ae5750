"""A request whose body is understood, on its way to whoever answers it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from headrace.gateway.callers import Caller
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.request_log import RequestRecord


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked, and who asks."""

    scope: Scope
    caller: Caller
    record: RequestRecord
    request: ChatRequest | CompletionRequest
    id_prefix: str
    """How an answer's id begins."""
    keep_alive: float | None = None
    """Seconds for which the model stays loaded after it; None leaves that as it is."""

    @property
    def background(self) -> bool:
        """Whether it may only fill gaps."""
        return bool(self.scope.get("headrace.background"))
