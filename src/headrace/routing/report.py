"""What routing was worth, from what a server has kept: cost, quality, regret, and how good predictions were.

What all models but the chosen one would have cost is as predicted when the request came. Quality is known for
the requests scored in the shadow, which are drawn whatever they hold, and so stand for all of them.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from headrace.routing.alone import Point, Tally, cost_of_mixing
from headrace.routing.store import Decision, Score, decision_of, score_of

NANO = 10**9
_EPOCH = date(1970, 1, 1)
_BINS = 10
_SURE = 1.96
"""Standard errors to each side of a 95% interval."""


@dataclass(frozen=True)
class Model:
    """One model. Costs in currency, shares as parts of 1.

    `alone`: where it would stand, had it answered everything. `scored`, `score`: its answers scored in the
    shadow and their mean; `feedback`, `received`: the same of users' scores.
    """

    name: str
    answers: int
    share: float
    cost: float
    alone: Point | None
    scored: int
    score: float | None
    feedback: int
    received: float | None


@dataclass(frozen=True)
class Savings:
    """What `answers` cost, what the best model would have cost for them, and the saved share of that."""

    answers: int
    cost: float
    best_cost: float
    saved: float | None


@dataclass(frozen=True)
class Kept:
    """Of the requests that asked for `asked` of the best model's quality: what they got, with a 95% interval.

    `samples`: scored for the chosen model and for the best one.
    """

    asked: float
    samples: int
    realised: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Regret:
    """Against the choice that was best in hindsight: the highest score, and of those the least cost.

    Means over `requests`, those with scores of two models or more; the cost in currency, less than 0 where
    the better answer would have been dearer. `hindsight`, `chosen`: where both stand.
    """

    requests: int
    quality: float
    cost: float
    chosen: Point
    hindsight: Point


@dataclass(frozen=True)
class Foreseen:
    """How a prediction fared: the median of measured / predicted, the median of how far it was off, as a part
    of what was measured, and the share within 25%."""

    answers: int
    ratio: float
    error: float
    within_25: float


@dataclass(frozen=True)
class Bin:
    """Answers whose chance to be good was estimated alike, and how good they were."""

    answers: int
    chance: float
    score: float


@dataclass(frozen=True)
class Spend:
    """Of one day (UTC) and key, in currency; what is reserved counts in full."""

    day: str
    key: str
    amount: float


@dataclass(frozen=True)
class Report:
    """Everything about the answers since some time. `statuses`: of those that were not given in full."""

    answers: int
    statuses: dict[str, int]
    cascaded: int
    hedged: int
    fell_back: int
    models: list[Model]
    route: Point | None
    mixing: float | None
    """What random choice between two of the models costs on average, for the route's quality."""
    savings: Savings
    kept: list[Kept]
    regret: Regret | None
    first_token: Foreseen | None
    output_tokens: Foreseen | None
    calibration: list[Bin]
    spend: list[Spend]


def measure(connection: sqlite3.Connection, since: float = 0.0) -> Report:
    """Reads a database (`database.read_only`): answers that came at `since` or later, seconds since 1970."""
    scores = [score_of(row) for row in connection.execute("SELECT * FROM scores WHERE time >= ?", (since,))]
    shadow = _by_answer(score for score in scores if score.source == "shadow")
    statuses: Counter[str] = Counter()
    scored: list[tuple[Decision, dict[str, float]]] = []
    first: list[tuple[float, float]] = []
    output: list[tuple[float, float]] = []
    tally, flags = Tally(), np.zeros(3, np.int64)
    for decision in _decisions(connection, since):
        flags += (decision.cascaded, decision.hedged, decision.fell_back)
        if decision.status != "ok":
            statuses[decision.status] += 1
            continue
        tally.add(decision, shadow.get(decision.answer, {}))
        if decision.answer in shadow:
            scored.append((decision, shadow[decision.answer]))
        if decision.first_token and decision.predicted_first_token:
            first.append((decision.predicted_first_token, decision.first_token))
        if decision.output_tokens and decision.predicted_output_tokens:
            output.append((decision.predicted_output_tokens, decision.output_tokens))
    alone, route = tally.alone(), tally.route()
    return Report(
        answers=tally.answers,
        statuses=dict(statuses),
        cascaded=int(flags[0]),
        hedged=int(flags[1]),
        fell_back=int(flags[2]),
        models=_models(tally, alone, scores),
        route=route,
        mixing=None if route is None else cost_of_mixing(list(alone.values()), route.quality),
        savings=_savings(tally),
        kept=_kept(scored),
        regret=_regret(scored),
        first_token=_foreseen(first),
        output_tokens=_foreseen(output),
        calibration=_calibration([score for score in scores if score.source == "shadow"]),
        spend=_spend(connection, since),
    )


def _decisions(connection: sqlite3.Connection, since: float) -> Iterator[Decision]:
    rows = connection.execute("SELECT * FROM decisions WHERE time >= ? ORDER BY number", (since,))
    return (decision_of(row) for row in rows)


def _by_answer(scores: Iterator[Score]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for score in scores:
        found.setdefault(score.answer, {})[score.model] = score.score
    return found


def _models(tally: Tally, alone: dict[str, Point], scores: Sequence[Score]) -> list[Model]:
    """Every model that answered or was a candidate, the cheapest first."""
    names = sorted({*alone, *tally.chosen}, key=lambda name: alone[name].cost if name in alone else 0.0)

    def told(name: str, source: str) -> list[float]:
        return [score.score for score in scores if (score.model, score.source) == (name, source)]

    return [
        Model(
            name=name,
            answers=tally.chosen[name],
            share=tally.chosen[name] / tally.answers,
            cost=tally.paid[name] / NANO,
            alone=alone.get(name),
            scored=len(shadow := told(name, "shadow")),
            score=float(np.mean(shadow)) if shadow else None,
            feedback=len(users := told(name, "feedback")),
            received=float(np.mean(users)) if users else None,
        )
        for name in names
    ]


def _savings(tally: Tally) -> Savings:
    saved = 1 - tally.compared_cost / tally.best_cost if tally.best_cost else None
    return Savings(tally.compared, tally.compared_cost / NANO, tally.best_cost / NANO, saved)


def _kept(scored: Sequence[tuple[Decision, dict[str, float]]]) -> list[Kept]:
    asked: dict[float, list[tuple[float, float]]] = {}
    for decision, scores in scored:
        if decision.quality is not None and {decision.model, decision.best} <= scores.keys():
            asked.setdefault(decision.quality, []).append((scores[decision.model], scores[decision.best]))
    return [_ratio(quality, pairs) for quality, pairs in sorted(asked.items()) if any(b for _, b in pairs)]


def _ratio(asked: float, pairs: Sequence[tuple[float, float]]) -> Kept:
    """Of the means; its error by the normal approximation for ratios of paired values (the delta method)."""
    got, best = np.array(pairs, np.float64).T
    ratio = float(got.mean() / best.mean())
    error = float((got - ratio * best).std(ddof=len(pairs) > 1) / best.mean() / np.sqrt(len(pairs)))
    return Kept(asked, len(pairs), ratio, max(0.0, ratio - _SURE * error), ratio + _SURE * error)


def _regret(scored: Sequence[tuple[Decision, dict[str, float]]]) -> Regret | None:
    rows = []
    for decision, scores in scored:
        known = {name: score for name, score in scores.items() if name in decision.costs}
        if len(known) < 2 or decision.model not in known:
            continue
        best = min(known, key=lambda name: (-known[name], decision.costs[name]))
        rows.append(
            (
                known[decision.model],
                decision.costs[decision.model] / NANO,
                known[best],
                decision.costs[best] / NANO,
            )
        )
    if not rows:
        return None
    score, cost, best_score, best_cost = (float(mean) for mean in np.mean(rows, axis=0))
    return Regret(
        len(rows), best_score - score, cost - best_cost, Point(cost, score), Point(best_cost, best_score)
    )


def _foreseen(pairs: Sequence[tuple[float, float]]) -> Foreseen | None:
    if not pairs:
        return None
    predicted, measured = np.array(pairs, np.float64).T
    off = np.abs(predicted - measured) / measured
    return Foreseen(
        len(pairs),
        float(np.median(measured / predicted)),
        float(np.median(off)),
        float((off <= 0.25).mean()),
    )


def _calibration(scores: Sequence[Score]) -> list[Bin]:
    pairs = [(score.chances[score.model], score.score) for score in scores if score.model in score.chances]
    if not pairs:
        return []
    chances, measured = np.array(pairs, np.float64).T
    places = np.minimum((chances * _BINS).astype(np.intp), _BINS - 1)
    return [
        Bin(int(mine.sum()), float(chances[mine].mean()), float(measured[mine].mean()))
        for place in range(_BINS)
        if (mine := places == place).any()
    ]


def _spend(connection: sqlite3.Connection, since: float) -> list[Spend]:
    rows = connection.execute(
        "SELECT day, key, amount FROM key_spend WHERE day >= ? ORDER BY day, key", (int(since // 86400),)
    )
    return [Spend(str(_EPOCH + timedelta(days=day)), key, amount / NANO) for day, key, amount in rows]


def kept_records(connection: sqlite3.Connection, *, feedback: bool) -> Iterator[dict[str, str | float]]:
    """Scored prompts as `records.read_records` reads them: by the shadow, and perhaps by users."""
    rows = connection.execute(
        "SELECT prompt, model, score FROM scores JOIN prompts USING (answer)"
        " WHERE source = 'shadow' OR ? ORDER BY scores.number",
        (feedback,),
    )
    for prompt, model, score in rows:
        yield {"prompt": prompt, "model": model, "score": score}
