"""Routed answers made for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.routing.store import Decision, Score

NOON = 20_000 * 86400 + 43200.0

_ANSWER = Decision(
    answer="answer-0",
    time=NOON,
    key="alice",
    policy="auto",
    model="small",
    tier="cpu",
    why="cheapest that will do",
    quality=0.9,
    best="large",
    chances={"small": 0.75, "large": 0.8},
    costs={"small": 1_000_000, "large": 10_000_000},
    predicted_first_token=0.1,
    first_token=0.12,
    predicted_output_tokens=50.0,
    output_tokens=40,
    input_tokens=20,
    cost=900_000,
)


def decision(number: int = 0, **different: Any) -> Decision:
    """An answer's record, of the number of seconds after noon."""
    return replace(_ANSWER, **({"answer": f"answer-{number}", "time": NOON + number} | different))


def score(number: int = 0, **different: Any) -> Score:
    """A score of that answer."""
    made = Score(f"answer-{number}", "small", 1.0, "shadow", NOON + number, _ANSWER.chances)
    return replace(made, **different)
