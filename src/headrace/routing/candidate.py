"""What is known of one model when a request is routed: the plain data that policies choose from.

Why a model cannot be used now is told in words that begin as those below do; `refusal_status` knows what a
client is told where that goes for every model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NOT_ALLOWED = "not allowed"


def too_short(context_length: int) -> str:
    """The prompt and the answer do not fit into the model's context."""
    return f"context of {context_length} tokens is too short"


def lacks(ability: str) -> str:
    """The request needs what the model cannot do: "vision", "tools"."""
    return f"no {ability}"


def rate_limited(seconds: float) -> str:
    """Our own limits towards it, or its towards us, are met for so long."""
    return f"rate limit for {_whole(seconds)} s"


def circuit_open(seconds: float) -> str:
    """It failed too often; nothing is sent to it for so long."""
    return f"circuit open for {_whole(seconds)} s"


def over_budget(budget: str, left: str, most: str, held: str = "") -> str:
    """What it may cost at most is more than is left of the budget; `held`: set aside for open requests."""
    held = held and f", {held} more set aside for requests that have not ended"
    return f"over the budget {budget} ({left} left{held}; may cost {most})"


def is_over_budget(refused: str) -> bool:
    """Whether money alone is in its way."""
    return refused.startswith(("over the budget", "over per_request"))


def too_dear(limit: str, most: str) -> str:
    """What it may cost at most is more than any request may."""
    return f"over per_request ({limit}; may cost {most})"


_STATUSES = (
    ("rate limit", 429, "rate_limit_exceeded"),
    ("circuit open", 503, "model_unavailable"),
    ("over the budget", 402, "budget_exceeded"),
    ("over per_request", 400, "max_cost"),
    ("context of", 400, "context_length_exceeded"),
    ("no ", 400, "unsupported_by_models"),
    (NOT_ALLOWED, 404, "model_not_found"),
)
"""Beginning, HTTP status and error code, what is soonest mended first."""


@dataclass(frozen=True)
class Candidate:
    """One model, for one request.

    `good`: the chance of a good answer, `spread`: how far it may be off. `will_do`: whether that is enough
    for the quality asked for, by the router's promise or estimates. `output_tokens`: predicted, where the
    request does not say. `cost`: predicted, `most_cost`: the most that it can cost, if the answer is as
    long as it may be. `first_token`, `per_token`: predicted seconds. `first_token_by`: what the first token
    keeps in all but few cases, where that is known; limits are held against it. `refused`: why it cannot be
    used now, "" where it can; `wait`: the seconds after which it may again, 0 where waiting does not help.
    `last`: it may be tried although it is refused, where nothing else is left. `in_pace`: what it is expected
    to cost does not get ahead of the pace of the day's budget; always so for policies that keep none.
    """

    name: str
    tier: str
    good: float
    spread: float
    will_do: bool
    input_tokens: int
    output_tokens: float
    cost: float
    most_cost: float
    first_token: float
    per_token: float
    refused: str = ""
    last: bool = False
    wait: float = 0.0
    first_token_by: float = 0.0
    in_pace: bool = True

    @property
    def seconds(self) -> float:
        """Predicted until the whole answer is there."""
        return self.first_token + self.output_tokens * self.per_token


def refusal_status(refused: str) -> tuple[int, int, str]:
    """How soon it can be mended (least: soonest), and the status and code of an error about it."""
    for rank, (beginning, status, code) in enumerate(_STATUSES):
        if refused.startswith(beginning):
            return rank, status, code
    return 1, 503, "model_unavailable"


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))
