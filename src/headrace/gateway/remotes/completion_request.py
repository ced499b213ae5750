"""A text completion in the words of OpenAI's API."""

from __future__ import annotations

import msgspec

from headrace.gateway.openai.requests import CompletionRequest
from headrace.gateway.prompts import split_prompts
from headrace.gateway.remotes.errors import not_expressible
from headrace.gateway.remotes.expressible import refuse_unknown
from headrace.gateway.remotes.openai_request import UNKNOWN, streamed
from headrace.gateway.remotes.outgoing import There, allowed_tokens

_SAME = (
    "prompt",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "n",
)
"""Fields that are handed on as they are."""

_encode = msgspec.json.Encoder().encode


def check_completion(name: str, request: CompletionRequest) -> None:
    """Raises RemoteError for what cannot be asked of the remote of that name."""
    refuse_unknown(name, request, UNKNOWN)
    if request.response_format is not None and request.response_format.type != "text":
        raise not_expressible(name, "response_format", "knows no forms of text completions")
    if request.max_tokens == 0:
        raise not_expressible(name, "max_tokens", "cannot be asked for no token")
    if request.echo and request.logprobs is not None:
        raise not_expressible(name, "echo", "cannot be asked for the prompt's log-probabilities")
    if request.echo and not all(isinstance(prompt, str) for prompt in split_prompts(request)):
        raise not_expressible(name, "echo", "has tokens of its own; only prompts of text can be repeated")


def completion_body(there: There, request: CompletionRequest) -> bytes:
    """The body of a request that was checked. The prompt is not asked to be repeated: it is known here."""
    body = streamed(there, request, _SAME)
    if (most := allowed_tokens(request, there.max_output)) is not None:
        body["max_tokens"] = most
    return _encode(body)
