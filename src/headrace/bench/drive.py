"""Runs requests on an engine, in this process and with nothing around it, and says when their tokens came."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.backends.sampling import SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.request import Output, PrefixNamespace, Request

GREEDY = SamplingParams(temperature=0.0)
NAMESPACE = PrefixNamespace("bench")


@dataclass(slots=True)
class Timing:
    """Seconds since the requests were handed in."""

    first: float = 0.0
    """Until the request's first token."""
    last: float = 0.0
    tokens: int = 0


def greedy_requests(
    prompts: Sequence[Sequence[int]], max_tokens: int, *, prefix_cache: bool
) -> list[Request]:
    """Requests that end by their length alone: end-of-text is a token like any other."""
    return [
        Request(
            id=str(index),
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            namespace=NAMESPACE,
            sampling=GREEDY,
            use_prefix_cache=prefix_cache,
        )
        for index, prompt in enumerate(prompts)
    ]


def outputs(engine: Engine, requests: Sequence[Request]) -> Iterator[Output]:
    """What each step brings, until all requests have ended."""
    for request in requests:
        engine.add(request)
    while engine.submit():
        yield from engine.collect()


def timed(engine: Engine, requests: Sequence[Request]) -> dict[str, Timing]:
    """When each request's tokens came, by its id."""
    timings = {request.id: Timing() for request in requests}
    start = time.perf_counter()
    for output in outputs(engine, requests):
        timing, now = timings[output.id], time.perf_counter() - start
        if output.token_ids:
            timing.first = timing.first or now
            timing.last = now
            timing.tokens += len(output.token_ids)
    for request in requests:
        assert timings[request.id].tokens == request.max_tokens, "a request ended early"
    return timings
