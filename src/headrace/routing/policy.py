"""What a policy is: a small class that puts the models which can answer a request into an order.

A user's own derives from `Policy` and is named in headrace.toml as "package.module:Class".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import RequestError
from headrace.routing.candidate import NOT_ALLOWED, Candidate, refusal_status
from headrace.routing.ledger import plain, shown
from headrace.routing.pricing import nano
from headrace.routing.tables import PolicyTable
from headrace.routing.wants import Wants


class NoModelError(RequestError):
    """No model can answer this request now. `wait`: seconds after which one may, 0 where none will."""

    def __init__(self, message: str, *, status: int, code: str, field: str = "model", wait: float = 0.0):
        super().__init__(message, field, status=status, code=code)
        self.wait = wait


@dataclass(frozen=True)
class Plan:
    """Which model answers, and who follows where it fails.

    `order`: names, the choice first, then the fallbacks; never empty. `why`: one short line of ASCII.
    `hedge_after`: seconds without a first token after which the next one is started beside it, None: never.
    `accept`: of a cascade, the chance from which on an answer is accepted; the first `steps` of the order
    are tried in turn until one is, and the last of them is always accepted. What comes after them is for
    failures only.
    """

    order: tuple[str, ...]
    why: str
    hedge_after: float | None = None
    accept: float | None = None
    steps: int = 1


class Policy(ABC):
    """Chooses among candidates. One object serves all requests of a policy; it keeps nothing of them."""

    def __init__(self, table: PolicyTable):
        self.table = table

    @abstractmethod
    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        """The order in which models are tried; `wants` is complete with the policy's defaults.

        Candidates stand in the order of headrace.toml. Raises RequestError where none is usable; `usable`
        does, and it keeps what cannot be had for `wants.cost` out of the plan.
        """


def usable(wants: Wants, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that can be used, the last resorts among them, and that cannot cost more than is wanted.

    Raises NoModelError that says why there is none.
    """
    ready = [each for each in candidates if not each.refused or each.last]
    affordable = [each for each in ready if wants.cost is None or each.most_cost <= wants.cost]
    if affordable:
        return affordable
    raise _too_dear(wants.cost or 0.0, ready) if ready else _none_ready(candidates)


def lateness(wants: Wants, candidate: Candidate) -> float:
    """By what factor it misses the first token or the speed asked for, the worse one; 1: it keeps both."""
    late = 1.0
    if wants.first_token is not None:
        late = max(late, max(candidate.first_token, candidate.first_token_by) / wants.first_token)
    if wants.tokens_per_second is not None:
        late = max(late, candidate.per_token * wants.tokens_per_second)
    return late


def _too_dear(limit: float, candidates: Sequence[Candidate]) -> NoModelError:
    cheapest = min(candidates, key=lambda each: each.most_cost)
    return NoModelError(
        f"max_cost of {plain(limit)} is too low: {cheapest.name}, the cheapest, may cost "
        f"{shown(nano(cheapest.most_cost))}; raise it, or ask for fewer tokens",
        status=400,
        code="max_cost",
        field="max_cost",
    )


def _none_ready(candidates: Sequence[Candidate]) -> NoModelError:
    """What a client is told follows from the refusal that is mended soonest."""
    shown = [each for each in candidates if each.refused != NOT_ALLOWED]
    if not shown:
        return NoModelError(
            "none of the route's models is allowed here; name others, or use a key that may ask them",
            status=404,
            code="model_not_found",
        )
    _, status, code = min(refusal_status(each.refused) for each in shown)
    waits = [each.wait for each in shown if each.wait > 0]
    reasons = "; ".join(f"{each.name}: {each.refused}" for each in shown)
    when = "" if status == 400 else " now"
    return NoModelError(
        f"no model can answer{when} ({reasons})", status=status, code=code, wait=min(waits, default=0.0)
    )
