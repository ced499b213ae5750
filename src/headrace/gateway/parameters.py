"""From a request's parameters to what a worker is told."""

from __future__ import annotations

import random
from typing import TypeVar

from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.gateway.requests import GenerationRequest
from headrace.gateway.served import ServedModel
from headrace.models.sampling_defaults import SamplingDefaults
from headrace.worker.messages import Submit

Number = TypeVar("Number", int, float)

_SMALLEST = 1e-6
"""Below this a temperature is as good as greedy, and its inverse no longer safe in float32."""


def sampling(
    request: GenerationRequest, defaults: SamplingDefaults, seed: int, prompt_index: int
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
    )


def _given(value: Number | None, default: Number) -> Number:
    return default if value is None else value


def submits(
    answer_id: str,
    model: ServedModel,
    request: GenerationRequest,
    prompts: list[list[int]],
    top_logprobs: int,
) -> list[Submit]:
    """One message to the worker for each prompt. A request without a seed is given a random one."""
    seed = random.getrandbits(64) if request.seed is None else request.seed % 2**64
    wanted = request.max_completion_tokens or request.max_tokens
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    vocab_size = model.prompter.vocab_size
    for i, token in enumerate(request.stop_token_ids or []):
        if token >= vocab_size:
            raise RequestError(
                f"Invalid 'stop_token_ids[{i}]': expected a token id below {vocab_size}, got {token}.",
                f"stop_token_ids[{i}]",
            )
    return [
        Submit(
            id=f"{answer_id}-{index}",
            prompt=prompt,
            max_tokens=min(wanted or model.context_length, model.context_length - len(prompt)),
            sampling=sampling(request, model.sampling, seed, index),
            stop=stop,
            stop_token_ids=request.stop_token_ids or [],
            ignore_eos=bool(request.ignore_eos),
            top_logprobs=top_logprobs,
            priority=request.priority or 0,
            salt=request.cache_salt or "",
        )
        for index, prompt in enumerate(prompts)
    ]
