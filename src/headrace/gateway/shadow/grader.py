"""What says how good several models' answers to one prompt are. A user's own derives from `Grader`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping

from headrace.gateway.openai.requests import ChatRequest

Ask = Callable[[ChatRequest], Awaitable[str]]
"""Has the best model answer; what it costs is paid from the budget for exploration."""


class Grader(ABC):
    """Of one server; several prompts may be graded at the same time."""

    asks = 0
    """How often it has the best model answer, for each prompt: what has to be set aside for that."""

    @abstractmethod
    async def grade(self, question: str, answers: Mapping[str, str], best: str, ask: Ask) -> dict[str, float]:
        """Scores in [0, 1], by model, the best one's included. A model that is left out has no score.

        `question`: the conversation as text. `answers`: by model, two or more; `best` is one of them.
        What it raises is logged, and nothing is scored; it should not hold what was said in the conversation.
        """
