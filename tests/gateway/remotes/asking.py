"""Asking a remote in tests, and joining what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from gateway.remotes.upstream import Script, Upstream
from headrace.gateway.answering import Answer
from headrace.gateway.openai.answers import Usage
from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.remotes.remote import Remote
from headrace.routing.tables import ModelTable

KEY = "sk-very-secret-0123456789abcdef"
NAME = "far"
T = TypeVar("T")


@dataclass
class Told:
    """What came of a question."""

    answers: list[Answer] = field(default_factory=list)
    usage: Usage | None = None
    believed: bool = False
    ttft: float | None = None
    finish_reasons: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.answers[0].text


def request(**fields: Any) -> ChatRequest:
    """A chat's request as a client sends it."""
    body = {"model": NAME, "messages": [{"role": "user", "content": "Where does water flow?"}]} | fields
    return msgspec.convert(body, ChatRequest)


def remote(upstream: Upstream, key: str | None = KEY, **table: Any) -> Remote:
    """The remote of an upstream."""
    settings: dict[str, Any] = {"url": upstream.openai, "upstream": "far-1"}
    return Remote(NAME, ModelTable(**settings | table), key)


async def answer(asked: Remote, body: ChatRequest) -> Told:
    """The whole answer."""
    told = Told([Answer() for _ in range(body.n or 1)])
    async with asked.ask("answer-1", body) as run:
        async for index, parts, event, reason in run:
            assert event.id == "answer-1"
            one = told.answers[index]
            one.add(parts, event)
            one.finish_reason = reason or one.finish_reason
        told.usage, told.believed = run.usage(), run.usage_believed
        told.ttft, told.finish_reasons = run.ttft, run.finish_reasons
    return told


def ask(script: Script, body: ChatRequest | None = None, **table: Any) -> tuple[Told, Upstream]:
    """Asks an upstream that follows the script; and the upstream, as it was left."""

    async def work() -> tuple[Told, Upstream]:
        async with Upstream(script).serving() as upstream:
            asked = remote(upstream, **table)
            try:
                return await answer(asked, body or request()), upstream
            finally:
                await asked.close()

    return run(work())


def run(work: Coroutine[Any, Any, T], seconds: float = 10) -> T:
    """Within so long, or not at all."""
    return asyncio.run(asyncio.wait_for(work, seconds))
