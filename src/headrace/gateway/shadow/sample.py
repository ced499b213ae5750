"""A routed answer that may be scored in the shadow, and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.gateway.openai.requests import ChatRequest
from headrace.routing.watch import Watch

_LAST = 2**31 - 1
"""The priority of what everything else goes before."""


@dataclass(frozen=True)
class Sample:
    """Models are numbered as in `watch.models`; `good` and `costs` are (M,)."""

    id: str
    """Of the answer, as it is kept."""
    watch: Watch
    request: ChatRequest
    answer: str
    answered: int
    """The model whose answer it is."""
    promised: bool
    """Whether the watch's slack chose that model: no limit of cost or latency, no failure was in the way."""
    good: NDArray[np.float64]
    """The chances of a good answer."""
    grading: float
    """What it is expected to cost to have the best model grade the answers once."""
    costs: Sequence[float]
    """What an answer of each model is expected to cost."""


@dataclass(frozen=True)
class Answered:
    """An answer that was asked for in the shadow."""

    text: str
    cost: float


def can_be_scored(request: ChatRequest) -> bool:
    """Whether its answer is one text: no tool may be called, nothing continued, and there is one choice."""
    special = request.tools or request.functions or request.continue_final_message
    return not special and request.n in (None, 1)


def in_the_shadow(request: ChatRequest, model: str) -> ChatRequest:
    """The same asked of another model, for no client, and after all else."""
    return msgspec.structs.replace(
        request,
        model=model,
        stream=None,
        stream_options=None,
        logprobs=None,
        top_logprobs=None,
        priority=_LAST,
    )


def as_text(request: ChatRequest) -> str:
    """The conversation, for a grader to read."""
    turns = []
    for message in request.messages:
        content = message.content
        if isinstance(content, list):
            content = "".join(part.text or "" for part in content)
        turns.append((message.role, content or ""))
    if len(turns) == 1:
        return turns[0][1]
    return "\n\n".join(f"{role}: {text}" for role, text in turns)
