"""Changes a JSON body as a body, for what is no JSON at all is refused before anything else is tried."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 255, 256, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.5, 1e300, 1e-9),
    *(
        "",
        "a",
        "fake",
        "user",
        "assistant",
        "tool",
        "text",
        "function",
        "auto",
        "required",
        "\ud800",
        "\0",
        "é🙂",
    ),
    *([], {}, [[]], [{}], ["a"], [1], [-1], {"a": 1}, {"type": "object"}, {"type": "text", "text": "Hi"}),
)

_LONGEST = 1000
"""Characters and items; a case may be changed many times over."""


def mutated(case: bytes, rng: random.Random, fields: Sequence[str]) -> bytes | None:
    """The case with some places of its body changed; None where the body is no JSON."""
    path, _, body = case.partition(b"\n")
    try:
        value = json.loads(body)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            value = _changed(value, rng, fields)
        return path + b"\n" + json.dumps(value).encode()
    except (ValueError, RecursionError):
        return None


def _changed(value: Any, rng: random.Random, fields: Sequence[str]) -> Any:
    """The value with one place in it changed, near the top as often as deep inside."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        change = rng.random()
        if change < 0.15:
            return {name: inner for name, inner in value.items() if name != key}
        if change < 0.4:
            return value | {rng.choice(fields): rng.choice(_VALUES)}
        return value | {key: _changed(value[key], rng, fields)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        change = rng.random()
        if change < 0.15:
            return value[:index] + value[index + 1 :]
        if change < 0.3:
            return (value + [value[index]] * rng.choice((1, 2, 40)))[:_LONGEST]
        return [*value[:index], _changed(value[index], rng, fields), *value[index + 1 :]]
    if isinstance(value, str) and rng.random() < 0.3:
        return (value * rng.choice((2, 30)))[:_LONGEST]
    return rng.choice(_VALUES)
