"""Calls of tools and their results by id, which remote APIs require and requests here may leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.gateway.errors import missing
from headrace.gateway.openai.requests import ChatMessage


@dataclass(slots=True)
class CallIds:
    """The ids of one conversation's calls and results."""

    calls: dict[tuple[int, int], str] = field(default_factory=dict)
    """By message and call."""
    results: dict[int, str] = field(default_factory=dict)
    """By message."""


def call_ids(messages: Sequence[ChatMessage]) -> CallIds:
    """Ids as they are; a call without one gets one, and a result without one is that of the oldest open call.

    Raises RequestError where a result answers no call.
    """
    ids = CallIds()
    waiting: list[str] = []
    for i, message in enumerate(messages):
        for k, call in enumerate(message.tool_calls or ()):
            ids.calls[i, k] = call.id or f"call_{i}_{k}"
            waiting.append(ids.calls[i, k])
        if message.role == "tool":
            known = message.tool_call_id or (waiting[0] if waiting else None)
            if known is None:
                raise missing(f"messages[{i}].tool_call_id")
            ids.results[i] = known
            if known in waiting:
                waiting.remove(known)
    return ids
