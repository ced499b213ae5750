"""An engine that computes nothing: its tokens are the letters of a known text, at a known pace."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.fake_prefixes import FakePrefixes
from headrace.engine.stats import EngineStats
from headrace.errors import TemplateError, WorkerDiedError
from headrace.fleet import ReplicaHealth, State, Stream
from headrace.models.answer import PlainFormat
from headrace.models.control_tokens import MarkedText
from headrace.worker.messages import Submit, TokenEvent

ANSWER = "Water flows downhill. "


class FakeEngine:
    """Answers with ANSWER, over and over, a letter a step, until max_tokens or a stop string.

    With `answer` it gives that once, and ends by itself.
    """

    def __init__(self, step_seconds: float = 0.0, cached_tokens: int = 0, answer: str | None = None) -> None:
        self.answer = answer
        self.step_seconds = step_seconds
        self.cached_tokens = cached_tokens
        self.submitted: list[Submit] = []
        self.cancelled: list[str] = []
        self.state = State.READY
        self.held = asyncio.Event()
        """Cleared: no request makes progress."""
        self.held.set()
        self.dies_after: int | None = None
        """Tokens after which the worker of every request dies."""
        self.prefixes = FakePrefixes()
        self._streams: dict[str, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, message: Submit) -> Stream:
        self.submitted.append(message)
        stream = self._streams[message.id] = Stream(message, self._cancel)
        task = asyncio.create_task(self._compute(message, stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    def _cancel(self, request_id: str) -> None:
        if stream := self._streams.pop(request_id, None):
            self.cancelled.append(request_id)
            stream.end()

    async def _compute(self, message: Submit, stream: Stream) -> None:
        text = ""
        letters = itertools.cycle(ANSWER) if self.answer is None else (*self.answer, "")
        for number, letter in enumerate(letters, start=1):
            await asyncio.sleep(self.step_seconds)
            await self.held.wait()
            if message.id not in self._streams:
                return
            if self.dies_after is not None and number > self.dies_after:
                stream.end(WorkerDiedError("the worker died; send the request again"))
                return
            text += letter
            reason = "length" if number == message.max_tokens else None
            shown, met = letter, ""
            if not letter:
                reason = "stop"
            for stop in message.stop:
                if text.endswith(stop):
                    reason, shown, met = "stop", "", stop
            logprobs = []
            if message.top_logprobs >= 0:
                tops = list(range(message.top_logprobs))
                logprobs = [(-0.5, tops, [-1.0] * len(tops))]
            event = TokenEvent(
                message.id,
                shown,
                [ord(letter or "\0")],
                reason,
                self.cached_tokens,
                logprobs,
                stop_string=met,
            )
            if number == 1 and message.prompt_logprobs >= 0:
                tops = list(range(message.prompt_logprobs))
                scored = [(-0.25, tops, [-1.0] * len(tops))] * (len(message.prompt) - 1)
                event = msgspec.structs.replace(event, prompt_logprobs=scored)
            stream.push(event)
            if reason:
                del self._streams[message.id]
                return

    async def close(self) -> None:
        for stream in self._streams.values():
            stream.end(WorkerDiedError("the server stopped before the request ended"))
        self._streams.clear()

    async def embed(self, prompt: list[int]) -> list[float]:
        """The first token, and how many there are."""
        return [float(prompt[0]), float(len(prompt))]

    def first_token_in(self, prompt: Sequence[int] | int, salt: str = "") -> float | None:
        return 0.01

    async def stats(self) -> dict[str, EngineStats]:
        return {"worker-0": EngineStats(*range(len(EngineStats._fields)))}

    def health(self) -> list[ReplicaHealth]:
        return [ReplicaHealth("worker-0", "fake", "both", self.state, 1, "0123", 0, "")]


class ByteWords:
    """A tokenizer whose tokens are bytes, and a template that writes `role:content;` for every message."""

    vocab_size = 256

    def __init__(self) -> None:
        self.tokenized = 0
        """Characters in all."""
        self.rendered: dict[str, Any] = {}
        """What the template was given last."""

    knows_tools = False
    answer_format = PlainFormat()

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> MarkedText:
        self.rendered = {"messages": list(messages), **variables}
        if messages[0]["content"] == "refuse":
            raise TemplateError("roles must alternate")
        return MarkedText("".join(f"{m['role']}:{m['content']};" for m in messages), "\ufdd0")

    def fewest_tokens(self, prompt: str | MarkedText) -> int:
        return len(_text(prompt)) // 2  # less than it knows, as a real one

    def encode(self, prompt: str | MarkedText, *, add_special: bool = True) -> list[int]:
        self.tokenized += len(_text(prompt))
        return list(_text(prompt).encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def _text(prompt: str | MarkedText) -> str:
    return prompt if isinstance(prompt, str) else prompt.text
