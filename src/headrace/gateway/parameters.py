"""From a request's parameters to the sampler's."""

from __future__ import annotations

from typing import TypeVar

from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.gateway.openai.requests import GenerationRequest
from headrace.gateway.served import ServedModel
from headrace.models.sampling_defaults import SamplingDefaults

Number = TypeVar("Number", int, float)

_SMALLEST = 1e-6
"""Below this a temperature is as good as greedy, and its inverse no longer safe in float32."""


def sampling(
    request: GenerationRequest, defaults: SamplingDefaults, seed: int, prompt_index: int, choice_index: int
) -> SamplingParams:
    """The sampler's parameters: the request's own, and the model's defaults for those that it leaves out."""
    temperature = _given(request.temperature, defaults.temperature)
    return SamplingParams(
        repetition_penalty=_given(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        temperature=0.0 if temperature < _SMALLEST else temperature,
        top_k=max(0, _given(request.top_k, defaults.top_k)),
        top_p=max(_SMALLEST, _given(request.top_p, defaults.top_p)),
        min_p=request.min_p or 0.0,
        seed=seed,
        prompt_index=prompt_index,
        choice_index=choice_index,
    )


def logit_bias(model: ServedModel, request: GenerationRequest) -> list[tuple[int, float]]:
    """(token id, addend) pairs. Raises RequestError where a key is no id of the model's vocabulary."""
    pairs = []
    for key, value in (request.logit_bias or {}).items():
        field = f"logit_bias[{key!r:.40}]"
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < model.prompter.vocab_size):
            raise RequestError(
                f"Invalid '{field}': expected a token id below {model.prompter.vocab_size}.", "logit_bias"
            )
        pairs.append((int(key), value))
    if len({token for token, _ in pairs}) != len(pairs):
        raise RequestError("Invalid 'logit_bias': a token id occurs twice.", "logit_bias")
    return pairs


def stop_token_ids(model: ServedModel, request: GenerationRequest) -> list[int]:
    """Token ids that end the answer. Raises RequestError where one is not in the vocabulary."""
    vocab_size = model.prompter.vocab_size
    for i, token in enumerate(request.stop_token_ids or []):
        if token >= vocab_size:
            raise RequestError(
                f"Invalid 'stop_token_ids[{i}]': expected a token id below {vocab_size}, got {token}.",
                f"stop_token_ids[{i}]",
            )
    return request.stop_token_ids or []


def _given(value: Number | None, default: Number) -> Number:
    return default if value is None else value
