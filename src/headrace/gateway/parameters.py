"""From a request's parameters to what a worker is told."""

from __future__ import annotations

import random

from headrace.backends.sampling import SamplingParams
from headrace.errors import RequestError
from headrace.gateway.requests import GenerationRequest
from headrace.gateway.served import ServedModel
from headrace.worker.messages import Submit

_SMALLEST = 1e-6
"""Below this a temperature is as good as greedy, and its inverse no longer safe in float32."""


def sampling(request: GenerationRequest, seed: int, prompt_index: int) -> SamplingParams:
    """The sampler's parameters, with OpenAI's defaults."""
    temperature = 1.0 if request.temperature is None else request.temperature
    return SamplingParams(
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        temperature=0.0 if temperature < _SMALLEST else temperature,
        top_k=max(0, request.top_k or 0),
        top_p=1.0 if request.top_p is None else max(_SMALLEST, request.top_p),
        min_p=request.min_p or 0.0,
        seed=seed,
        prompt_index=prompt_index,
    )


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
            sampling=sampling(request, seed, index),
            stop=stop,
            stop_token_ids=request.stop_token_ids or [],
            ignore_eos=bool(request.ignore_eos),
            top_logprobs=top_logprobs,
            priority=request.priority or 0,
            salt=request.cache_salt or "",
        )
        for index, prompt in enumerate(prompts)
    ]
