"""From a checked request to what a worker is told and how its answer is to be taken apart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.errors import RequestError
from headrace.gateway.constraint import constraint_of
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest, GenerationRequest
from headrace.gateway.parameters import logit_bias, sampling, stop_token_ids
from headrace.gateway.prompts import (
    answer_tokens,
    encode_prompt,
    offered_tools,
    render_messages,
    split_prompts,
    stop_strings,
    text_of,
)
from headrace.gateway.served import ServedModel
from headrace.models.answer import AnswerParser, PlainParser
from headrace.worker.constraints import check
from headrace.worker.messages import Constraint, Submit


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be run."""

    prompts: list[list[int]]
    texts: list[str]
    """The prompts as text, where the answer begins with them; else empty."""
    submits: list[Submit]
    """One for each sequence: those of the first prompt's choices, then those of the second's."""
    parser: Callable[[], AnswerParser]
    """Makes a parser for one sequence's answer."""


def sequences(request: ChatRequest | CompletionRequest) -> int:
    """How many sequences the request runs."""
    prompts = 1 if isinstance(request, ChatRequest) else len(split_prompts(request))
    return prompts * (request.n or 1)


async def prepare(answer_id: str, model: ServedModel, request: ChatRequest | CompletionRequest) -> Prepared:
    """Tokenizes and checks. Raises RequestError that names the field which is wrong."""
    if isinstance(request, ChatRequest):
        return await _chat(answer_id, model, request)
    return await _completion(answer_id, model, request)


async def _chat(answer_id: str, model: ServedModel, request: ChatRequest) -> Prepared:
    if request.top_logprobs and not request.logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    top_logprobs = (request.top_logprobs or 0) if request.logprobs else -1
    tools = offered_tools(request)
    rendered, prompt = await render_messages(model, request, tools)
    made = await _submits(answer_id, model, request, [prompt], top_logprobs, tools=tools, tail=rendered.tail)
    answer_format = model.prompter.answer_format
    return Prepared([prompt], [], made, lambda: answer_format.parser(tools or None, rendered.tail))


async def _completion(answer_id: str, model: ServedModel, request: CompletionRequest) -> Prepared:
    if request.max_tokens == 0 and not request.echo:
        raise RequestError("Invalid 'max_tokens': 0 asks for nothing, unless 'echo' is true.", "max_tokens")
    given = split_prompts(request)
    fields = [f"prompt[{i}]" if len(given) > 1 else "prompt" for i in range(len(given))]
    answer = answer_tokens(request)
    prompts = [
        await encode_prompt(model, one, field, answer) for one, field in zip(given, fields, strict=True)
    ]
    top_logprobs = -1 if request.logprobs is None else request.logprobs
    made = await _submits(
        answer_id, model, request, prompts, top_logprobs, prompt_logprobs=top_logprobs if request.echo else -1
    )
    texts = [text_of(model, one) for one in given] if request.echo else []
    return Prepared(prompts, texts, made, PlainParser)


async def _submits(
    answer_id: str,
    model: ServedModel,
    request: ChatRequest | CompletionRequest,
    prompts: Sequence[list[int]],
    top_logprobs: int,
    *,
    prompt_logprobs: int = -1,
    tools: Sequence[dict[str, object]] = (),
    tail: str = "",
) -> list[Submit]:
    """One message to the worker for each choice of each prompt. Without a seed they get a random one."""
    seed = random.getrandbits(64) if request.seed is None else request.seed % 2**64
    wanted = answer_tokens(request)
    stop = stop_strings(request)
    bias, stop_ids = logit_bias(model, request), stop_token_ids(model, request)
    constraint = await _constraint(model, request, tools, tail)
    choices = request.n or 1
    return [
        Submit(
            id=f"{answer_id}-{number * choices + choice}",
            prompt=prompt,
            max_tokens=min(wanted or model.context_length, model.context_length - len(prompt)),
            sampling=sampling(request, model.sampling, seed, number, choice),
            stop=stop,
            stop_token_ids=stop_ids,
            ignore_eos=bool(request.ignore_eos),
            top_logprobs=top_logprobs,
            priority=request.priority or 0,
            salt=request.cache_salt or "",
            min_tokens=request.min_tokens or 0,
            logit_bias=bias,
            constraint=constraint,
            include_stop=bool(request.include_stop_str_in_output),
            prompt_logprobs=prompt_logprobs,
        )
        for number, prompt in enumerate(prompts)
        for choice in range(choices)
    ]


async def _constraint(
    model: ServedModel, request: GenerationRequest, tools: Sequence[dict[str, object]], tail: str
) -> Constraint | None:
    asked = constraint_of(model, request, tools, tail)
    if asked is None:
        return None
    field, constraint = asked
    try:
        await asyncio.to_thread(check, constraint)
    except RequestError as error:
        raise RequestError(f"Invalid '{field}': {error}", field, code="invalid_constraint") from error
    return constraint
