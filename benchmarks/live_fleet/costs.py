"""What a model's tokens cost, from its measured speed: an hour of the machine costs all of them the same."""

from __future__ import annotations

from dataclasses import dataclass

from live_fleet.answers import Answer

HOUR = 1.0
"""Of the machine; the unit of all costs here. Only their proportions matter."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second of a model with the machine to itself and CONCURRENCY requests at a time."""

    prompt: float
    output: float


@dataclass(frozen=True)
class Price:
    """Of a million tokens."""

    prompt: float
    output: float

    @staticmethod
    def at(speed: Speed) -> Price:
        """What a million tokens take of an hour."""
        return Price(HOUR / 3600 * 1e6 / speed.prompt, HOUR / 3600 * 1e6 / speed.output)

    def of(self, answer: Answer) -> float:
        """Of one answer. Its whole prompt is charged: what was cached is luck of the order."""
        return (self.prompt * answer.prompt_tokens + self.output * answer.completion_tokens) / 1e6
