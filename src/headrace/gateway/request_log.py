"""A line about each request when it ends: figures, and what was asked only where that is wanted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from starlette.types import Scope

from headrace.gateway.answering import Answering
from headrace.gateway.callers import Caller
from headrace.gateway.json_line import encode

_LONGEST_PATH = 200


@dataclass(slots=True)
class RequestRecord:
    """What is told of a request, filled in as it gets on."""

    path: str
    arrived: float = field(default_factory=time.monotonic)
    """On time.monotonic's clock."""
    id: str = "-"
    """The answer's; "-" where the request was refused before it had one."""
    run: Answering | None = None
    scope: Scope = field(default_factory=dict)
    """The request's, for its id, its caller and its headers."""
    model: str = "-"
    policy: str = "-"
    """Which chose the model; "-" where the request named one."""
    asked: msgspec.Struct | None = None
    """The body in OpenAI's words."""
    queue_seconds: float | None = None
    """How long it waited for its turn in the gateway."""

    @classmethod
    def of(cls, scope: Scope) -> RequestRecord:
        """The record of a request that has just arrived."""
        return cls(scope["path"], scope=scope)

    @classmethod
    def of_unknown(cls, scope: Scope) -> RequestRecord:
        """That of a request from nobody that is known. Its path may be anything, so it is told with care."""
        return cls(quote(scope["path"])[:_LONGEST_PATH], scope=scope)

    @property
    def request_id(self) -> str:
        """The client's own, or the one it was given."""
        return str(self.scope.get("headrace.request_id", "-"))

    @property
    def caller(self) -> str:
        """The name of the key; "-" where the request had none that is known."""
        caller = self.scope.get("headrace.caller")
        return caller.name if isinstance(caller, Caller) else "-"

    def figures(self, status: int) -> dict[str, Any]:
        """All that is told, in the order of the log. Times in seconds; None for what never was."""
        usage = self.run.usage() if self.run is not None else None
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "time": now,
            "id": self.id,
            "path": self.path,
            "status": status,
            "prompt": usage.prompt_tokens if usage else 0,
            "cached": usage.prompt_tokens_details.cached_tokens if usage else 0,
            "output": usage.completion_tokens if usage else 0,
            "ttft": self.run.ttft if self.run is not None else None,
            "duration": time.monotonic() - self.arrived,
            "queue": self.queue_seconds,
            "model": self.model,
            "key": self.caller,
            "request": self.request_id,
            "policy": self.policy,
        }

    def text(self) -> Any:
        """What was asked: messages, or the prompt; None where the body was not understood."""
        asked = getattr(self.asked, "messages", None) or getattr(self.asked, "prompt", None)
        return msgspec.to_builtins(asked)


Observer = Callable[[RequestRecord, int], None]
"""Is given each request that generates or has no valid key, and the status of its answer, when it ends."""

LogFormat = Literal["text", "json"]


def log_requests(
    write: Callable[[str], None], log_format: LogFormat = "text", prompts: bool = False
) -> Observer:
    """An observer that writes a line for each request; with what was asked where `prompts` says so."""

    def as_text(record: RequestRecord, status: int) -> None:
        figures = record.figures(status)
        line = " ".join(str(figures.pop(name)) for name in ("time", "id", "path", "status"))
        for name, value in figures.items():
            shown = "-" if value is None else f"{value:.3f}" if isinstance(value, float) else value
            line += f" {name}={shown}"
        if prompts:
            line += f" asked={encode(record.text()).decode()}"
        write(line)

    def as_json(record: RequestRecord, status: int) -> None:
        figures = record.figures(status)
        for name in ("ttft", "duration", "queue"):
            if figures[name] is not None:
                figures[name] = round(figures[name], 6)
        if prompts:
            figures["asked"] = record.text()
        write(encode(figures).decode())

    return as_json if log_format == "json" else as_text
