"""A routed request as the store keeps it, once it has ended."""

from __future__ import annotations

from headrace.gateway.routed.execution import Execution
from headrace.routing.candidate import NOT_ALLOWED
from headrace.routing.pricing import nano
from headrace.routing.store import Decision


def decision_of(execution: Execution, status: str, time: float) -> Decision:
    """What was predicted, and what came of it, once a model has answered; `time`: seconds since 1970."""
    route = execution.route
    # Those, too, for which the budget was too small: what they would have cost is what it saved.
    known = {name: each for name, each in route.candidates.items() if each.refused != NOT_ALLOWED}
    first = execution.spoken[0]
    usages = [usage for attempt in execution.spoken if (usage := attempt.usage) is not None]
    as_foreseen = first.number == 0
    return Decision(
        answer=route.asking.record.id,
        time=time,
        key=route.asking.caller.name,
        policy=route.rule.name,
        model=first.name,
        tier=first.member.tier,
        why=route.plan.why,
        quality=route.wants.quality,
        best=route.best,
        chances={name: each.good for name, each in known.items()},
        costs={name: nano(each.cost) for name, each in known.items()},
        predicted_first_token=first.candidate.first_token if as_foreseen else None,
        first_token=first.first_token,
        predicted_output_tokens=first.candidate.output_tokens,
        output_tokens=sum(usage.completion_tokens for usage in usages),
        input_tokens=usages[0].prompt_tokens if usages else 0,
        cost=nano(execution.cost),
        attempts=len(execution.attempts),
        cascaded=execution.cascaded,
        hedged=execution.hedged,
        fell_back=execution.fell_back,
        status=status,
    )
