"""What the engine's tests share: short requests, and running an engine to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.fake_backend import FakeBackend
from headrace.backends.sampling import SamplingParams
from headrace.engine.engine import Engine, EngineConfig
from headrace.engine.request import Output, PrefixNamespace, Request

PLAIN = PrefixNamespace("model")


def request(
    name: str, prompt: Sequence[int], max_tokens: int = 4, *, seed: int = 0, salt: str = "", **rest: Any
) -> Request:
    sampling = rest.pop("sampling", SamplingParams(seed=seed))
    return Request(name, tuple(prompt), max_tokens, PrefixNamespace("model", salt=salt), sampling, **rest)


def make_engine(blocks: int = 256, groups: int = 1, **limits: Any) -> Engine:
    return Engine(FakeBackend(groups), EngineConfig(blocks, **limits))


def step(engine: Engine) -> dict[str, Output]:
    """One step's outputs by request."""
    assert engine.submit()
    return {output.id: output for output in engine.collect()}


def run(engine: Engine) -> dict[str, tuple[int, ...]]:
    """All tokens of every request, until none is left."""
    tokens: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        for name, output in step(engine).items():
            tokens[name] = tokens.get(name, ()) + output.token_ids
    return tokens
