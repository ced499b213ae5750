"""A request as it goes to a remote."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.prepare import sequences
from headrace.gateway.prompts import answer_tokens
from headrace.gateway.remotes.contents import images_in
from headrace.gateway.remotes.tally import Asked

MOST_TOKENS = 2**17
"""Of an answer of which nothing is known; no model writes more."""


@dataclass(frozen=True, slots=True)
class There:
    """What a model is where it is served."""

    name: str
    max_output: int | None = None
    """Tokens of an answer; None where it is not known."""
    newer_limit: bool = False
    """It knows `max_completion_tokens` only, and no `max_tokens`."""
    forbids: frozenset[str] = frozenset()
    """Of `stream_options` and `max_completion_tokens`, what it refuses, as Mistral's servers do."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The body, and what its answer is measured by."""

    body: bytes
    asked: Asked


def outgoing(
    body: bytes, request: ChatRequest | CompletionRequest, max_output: int | None, context_length: int | None
) -> Outgoing:
    """The body with what is known of the request."""
    images = list(images_in(request.messages)) if isinstance(request, ChatRequest) else []
    choices = sequences(request)
    size = len(body) - sum(map(len, images))
    most = allowed_tokens(request, max_output) or max_output or context_length or MOST_TOKENS
    if context_length is not None:
        context_length *= choices // (request.n or 1)  # each prompt of a text completion has its own
    return Outgoing(body, Asked(size, len(images), choices, most, context_length))


def allowed_tokens(request: ChatRequest | CompletionRequest, max_output: int | None) -> int | None:
    """The most tokens of answer that the request asks for, and that the model can give."""
    asked = answer_tokens(request)
    return asked if asked is None or max_output is None else min(asked, max_output)
