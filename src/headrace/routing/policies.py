"""The policies that come with Headrace: the cheapest that will do, the best for the money, the cascade.

Where limits cannot all be kept, quality goes before latency, and latency before cost. What a request may
cost at most is always kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.errors import ConfigError
from headrace.routing.candidate import Candidate, is_over_budget
from headrace.routing.policy import Plan, Policy, lateness, usable
from headrace.routing.tables import PolicyTable
from headrace.routing.user_class import class_named
from headrace.routing.wants import Wants


class Cheapest(Policy):
    """The cheapest model that will do for the quality asked for and keeps the latency asked for."""

    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        """All usable models, those that will do before the others, a last resort last."""

        def rank(each: Candidate) -> tuple[float, ...]:
            return _rank(wants, each, each.cost, -each.good)

        order = sorted(usable(wants, candidates), key=rank)
        return _planned(self.table, wants, order, "cheapest", _kept_out(candidates, order[0], rank))


class BestInBudget(Policy):
    """The model with the best chance of a good answer, within what the request and budgets allow to spend.

    Quality and latency asked for are looked at first, the chance decides among those that meet both. Those
    that would get ahead of the pace of the day's budget come after, the cheapest first.
    """

    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        """All usable models, those that will do before the others, a last resort last."""

        def rank(each: Candidate) -> tuple[float, ...]:
            last = (-each.good, each.cost) if each.in_pace else (each.cost, -each.good)
            return _rank(wants, each, not each.in_pace, *last)

        order = sorted(usable(wants, candidates), key=rank)
        kind = "best" if order[0].in_pace else "ahead of the day's pace: cheapest"
        if order[0].in_pace and not all(each.in_pace for each in order if each.will_do):
            kind = "best within the day's pace"
        return _planned(self.table, wants, order, kind, _kept_out(candidates, order[0], rank))


class Cascade(Policy):
    """A cheap model first; where its answer is not accepted by its own confidence, the next better one.

    A model is tried where that lowers the cost that is to be expected, its chance of a good answer taken for
    the chance that it is accepted. An answer is held back until it is accepted: where a first token is asked
    for that would come too late then, or the steps together may cost too much, fewer are tried. With one
    left, it is `Cheapest`.
    """

    def plan(self, wants: Wants, candidates: Sequence[Candidate]) -> Plan:
        """The steps, then all other usable models for failures."""
        able = usable(wants, candidates)
        steps = _fitting(wants, _worthwhile(wants, [each for each in able if not each.refused]))
        if len(steps) < 2:
            return Cheapest(self.table).plan(wants, candidates)
        others = [each for each in able if each not in steps]
        others.sort(key=lambda each: _rank(wants, each, each.cost, -each.good))
        accept = self.table.accept
        if accept is None:
            accept = (1.0 if wants.quality is None else wants.quality) * steps[-1].good
        names = tuple(each.name for each in [*steps, *others])
        why = f"cascade of {len(steps)}: {steps[0].name} first, accepted from a chance of {accept:.2f} on"
        return Plan(names, why, accept=accept, steps=len(steps))


_KINDS: dict[str, type[Policy]] = {"cheapest": Cheapest, "best-in-budget": BestInBudget, "cascade": Cascade}


def policy_of(table: PolicyTable) -> Policy:
    """The policy of a table's kind. Raises ConfigError for a class of the user's that is none."""
    kind = _KINDS.get(table.kind) or class_named(table.kind, Policy)  # type: ignore[type-abstract]
    try:
        return kind(table)
    except ConfigError:
        raise
    except Exception as error:  # the user's code
        raise ConfigError(f"'{table.kind}' cannot be made: {type(error).__name__}: {error}") from error


def _rank(wants: Wants, each: Candidate, *last: float) -> tuple[float, ...]:
    """Sorts by quality, then latency, then `last`. Of models that will not do, the best comes first."""
    if each.will_do:
        return (each.refused != "", False, lateness(wants, each), *last)
    return (each.refused != "", True, -each.good, lateness(wants, each), *last)


def _kept_out(
    candidates: Sequence[Candidate], choice: Candidate, rank: Callable[[Candidate], tuple[float, ...]]
) -> str:
    """Tells of a model that would have been chosen instead, but for a budget."""
    over = [replace(each, refused="") for each in candidates if is_over_budget(each.refused)]
    if not over or rank(first := min(over, key=rank)) >= rank(choice):
        return ""
    return f"; {first.name} is over the budget"


def _planned(table: PolicyTable, wants: Wants, order: Sequence[Candidate], kind: str, kept_out: str) -> Plan:
    """The plan of an order that needs no further thought."""
    hedge_after = None
    if table.hedge is not None and len(order) > 1 and not order[1].refused:
        both = order[0].most_cost + order[1].most_cost
        if wants.cost is None or both <= wants.cost:
            hedge_after = table.hedge * order[0].first_token
    return Plan(tuple(each.name for each in order), _why(wants, order, kind) + kept_out, hedge_after)


def _why(wants: Wants, order: Sequence[Candidate], kind: str) -> str:
    choice = order[0]
    if choice.refused:
        return f"last resort ({choice.refused}); nothing else can answer"
    if not choice.will_do:
        return f"best chance of {len(order)}; no usable model meets the quality"
    met = [each for each in order if each.will_do and not each.refused]
    limits = [] if wants.quality is None else [f"quality {wants.quality:g}"]
    late = lateness(wants, choice)
    if late > 1:
        asked = limits[0] if limits else "the quality"
        return f"soonest of {len(met)} with {asked}; {late:.1f} times too slow for what was asked"
    if wants.first_token is not None:
        limits.append(f"first token {wants.first_token * 1000:g} ms")
    if wants.tokens_per_second is not None:
        limits.append(f"{wants.tokens_per_second:g} tokens/s")
    kept = [each for each in met if lateness(wants, each) <= 1]
    return f"{kind} of {len(kept)} with {', '.join(limits) or 'the quality'}"


def _worthwhile(wants: Wants, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Steps up to the model with the best chance, the cheapest first, each better than the one before.

    Steps before the last have the speed asked for.
    """
    if not candidates:
        return []
    best = min(candidates, key=lambda each: (-each.good, each.cost))
    steps, expected = [best], best.cost
    for each in sorted(candidates, key=lambda each: (-each.cost, each.good)):
        quick = wants.tokens_per_second is None or each.per_token * wants.tokens_per_second <= 1
        with_it = each.cost + (1 - each.good) * expected
        if quick and each.cost < steps[0].cost and each.good < steps[0].good and with_it < expected:
            steps.insert(0, each)
            expected = with_it
    return steps


def _fitting(wants: Wants, steps: Sequence[Candidate]) -> Sequence[Candidate]:
    """The last of the steps, as many as keep the cost and the first token asked for; at least one."""
    for first in range(len(steps) - 1):
        left = steps[first:]
        most_cost = sum(each.most_cost for each in left)
        first_token = sum(each.seconds for each in left[:-1]) + left[-1].first_token
        if (wants.cost is None or most_cost <= wants.cost) and (
            wants.first_token is None or first_token <= wants.first_token
        ):
            return left
    return steps[-1:]
