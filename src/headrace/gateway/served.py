"""What the gateway knows of a model that it serves: its name, its words, its limits, and who computes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from headrace.engine.stats import EngineStats
from headrace.fleet import Prefixes, ReplicaHealth
from headrace.models.answer import AnswerFormat
from headrace.models.control_tokens import MarkedText
from headrace.models.sampling_defaults import SamplingDefaults
from headrace.worker.messages import Submit, TokenEvent

Result = TypeVar("Result")

LONG_TEXT = 8192
"""Characters from which a prompt is tokenized on a thread, so that running streams do not wait for it."""


class EventStream(Protocol):
    """A request's events up to the one with a finish reason; closing it early cancels the request."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...

    async def aclose(self) -> None: ...

    def when_ended(self, told: Callable[[], None]) -> None:
        """`told` is called when the engine has done its work, though events may be left to read."""
        ...


class Engine(Protocol):
    """Who computes: a fleet of workers, seen from the gateway."""

    @property
    def prefixes(self) -> Prefixes:
        """What its prefix caches hold."""
        ...

    def submit(self, message: Submit) -> EventStream:
        """Begins a request. The call or the stream raises a HeadraceError where it cannot run or complete."""
        ...

    def first_token_in(self, prompt: Sequence[int] | int, salt: str = "") -> float | None:
        """Predicted seconds to the first token, were a prompt of these or so many tokens submitted now.

        None where no worker is ready.
        """
        ...

    async def embed(self, prompt: list[int]) -> list[float]:
        """The prompt's vector. Raises a HeadraceError where the model has none to give."""
        ...

    async def stats(self) -> dict[str, EngineStats]:
        """The latest figures by replica."""
        ...

    def health(self) -> list[ReplicaHealth]:
        """Every replica's state."""
        ...


class Prompter(Protocol):
    """A model's tokenizer and chat template."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def knows_tools(self) -> bool:
        """Whether the chat template can offer tools."""
        ...

    @property
    def answer_format(self) -> AnswerFormat:
        """What the model writes besides text."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> MarkedText:
        """A conversation's text up to where the answer begins. Raises a HeadraceError."""
        ...

    def fewest_tokens(self, prompt: str | MarkedText) -> int:
        """How many tokens the text has at the least, found much sooner than its tokens."""
        ...

    def encode(self, prompt: str | MarkedText, *, add_special: bool = True) -> list[int]:
        """The tokens of a plain or of a rendered text, those included that the model begins a text with.

        A plain text goes without those where `add_special` is false.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model behind a name."""

    name: str
    engine: Engine
    prompter: Prompter
    context_length: int
    """The most tokens of prompt and output together."""
    fingerprint: str | None = None
    """Changes with anything that could change an answer's tokens."""
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    """For what a request leaves out."""
    created: int = field(default_factory=lambda: int(time.time()))


async def off_the_loop(size: int, work: Callable[[], Result]) -> Result:
    """Does the work, on a thread where `size` characters promise that it takes long."""
    return await asyncio.to_thread(work) if size > LONG_TEXT else work()
