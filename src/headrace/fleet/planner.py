"""How many workers, and in which roles, meet limits of TTFT and TPOT at the least cost.

Fleets are tried by forecast on requests drawn from the observed load, from the smallest that could keep up:
workers that do both, and prefill beside decode. Pure: the load, the speeds and the limits say all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

from headrace.fleet.forecast import Forecast, Pools, Prefilled, decoded, forecast, plain, prefilled
from headrace.fleet.modelled_worker import WorkerModel
from headrace.fleet.traffic import Arrival, Load

DRAWN = 600
"""Requests of a forecast."""
_HOPELESS = 4
"""Fleets in a row, each larger than the one before, that come no nearer to the limits."""
_NEARER = 0.98
"""What the limits' strain must fall to, as a part of what it was, to count as nearer."""
_MOST_LOADED = 0.9
"""Of what workers can do; beyond, a queue grows for longer than a forecast looks."""


class Limits(NamedTuple):
    """Seconds that 95% of the requests are to keep; None: any."""

    ttft: float | None = None
    tpot: float | None = None

    def strain(self, told: Forecast) -> float:
        """How far the worst limit is used; above 1 it is exceeded."""
        ttft = told.ttft / self.ttft if self.ttft else 0.0
        tpot = told.tpot / self.tpot if self.tpot else 0.0
        return max(ttft, tpot)


class Tier(NamedTuple):
    """A kind of worker that may be had."""

    name: str
    worker: WorkerModel
    cost: float = 1.0
    """Of one worker, in any unit."""
    most: int = 64
    """How many there can be."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A fleet, and what is expected of it."""

    pools: Pools
    tiers: tuple[str, str]
    """Of those that compute prompts, and of those that answer."""
    cost: float
    forecast: Forecast
    meets: bool
    """Whether it keeps the limits; else it is the one that comes nearest."""
    reasons: tuple[str, ...]


def plan(load: Load, tiers: Sequence[Tier], limits: Limits, *, may_split: bool = True) -> Plan:
    """The cheapest fleet of the tiers, at least one, that keeps the limits under the load.

    Of equally cheap ones the one whose limits are least strained. `may_split` lets workers be told apart by
    role.
    """
    arrivals = list(load.drawn(DRAWN))
    tried = [_plain(arrivals, load, tier, limits) for tier in tiers]
    for prefill, decode in product(tiers, tiers) if may_split else ():
        if (split := _split(arrivals, load, prefill, decode, limits)) is not None:
            tried.append(split)

    def rank(one: _Tried) -> tuple[bool, float, float]:
        strain = limits.strain(one.told)
        return (False, one.cost, strain) if strain <= 1 else (True, strain, one.cost)

    best = min(tried, key=rank)
    return _told(best, tried, load, limits)


def splits(load: Load, worker: WorkerModel, workers: int) -> Iterator[tuple[Pools, Forecast]]:
    """What each way to divide so many workers would make of the load."""
    arrivals = list(load.drawn(DRAWN))
    yield Pools(both=workers), plain(arrivals, worker, workers)
    for prefill in range(1, workers):
        pools = Pools(0, prefill, workers - prefill)
        yield pools, forecast(arrivals, worker, pools)


class _Tried(NamedTuple):
    pools: Pools
    tiers: tuple[Tier, Tier]
    told: Forecast

    @property
    def cost(self) -> float:
        prefill, decode = self.tiers
        return self.pools.prefill * prefill.cost + (self.pools.both + self.pools.decode) * decode.cost


def _plain(arrivals: Sequence[Arrival], load: Load, tier: Tier, limits: Limits) -> _Tried:
    fewest = min(tier.most, _fewest(load, tier.worker, prompts=True, outputs=True))
    return _nearest(
        (
            _Tried(Pools(both=count), (tier, tier), plain(arrivals, tier.worker, count))
            for count in range(fewest, tier.most + 1)
        ),
        limits,
    )


def _split(
    arrivals: Sequence[Arrival], load: Load, prefill: Tier, decode: Tier, limits: Limits
) -> _Tried | None:
    """The least of both pools: who computes prompts decides about TTFT, who answers about TPOT."""
    shared = 1 if prefill == decode else 0
    most = prefill.most - shared
    fewest = min(most, _fewest(load, prefill.worker, prompts=True, outputs=False))
    if fewest < 1:
        return None
    decoders = _fewest(load, decode.worker, prompts=False, outputs=True)

    @cache
    def given(count: int) -> Prefilled:
        return prefilled(arrivals, prefill.worker, count)

    def tried(count: int, to: int) -> _Tried:
        told = decoded(arrivals, given(count), decode.worker, to)
        return _Tried(Pools(0, count, to), (prefill, decode), told)

    plenty = 2 * decoders
    prefilling = (tried(count, plenty) for count in range(fewest, most + 1))
    count = _nearest(prefilling, Limits(ttft=limits.ttft)).pools.prefill
    last = decode.most - (count if shared else 0)
    return _nearest((tried(count, to) for to in range(min(decoders, last), last + 1)), limits)


def _nearest(fleets: Iterator[_Tried], limits: Limits) -> _Tried:
    """The first that keeps the limits; else, when larger ones come no nearer, the one that came nearest."""
    best, strain, hopeless = next(fleets), math.inf, 0
    strain = limits.strain(best.told)
    while strain > 1 and hopeless < _HOPELESS and (other := next(fleets, None)) is not None:
        nearer = limits.strain(other.told)
        hopeless = 0 if nearer < _NEARER * strain else hopeless + 1
        if nearer < strain:
            best, strain = other, nearer
    return best


def _fewest(load: Load, worker: WorkerModel, *, prompts: bool, outputs: bool) -> int:
    """Workers that keep up with the load without being as good as always in their largest steps."""
    time, seconds = worker.step_time, 0.0
    of_prompt, of_output = (time.row + time.base / most for most in (worker.budget, worker.max_running))
    for prompt, cached, output in load.lengths:
        if prompts:
            seconds += (of_prompt + time.context * (prompt + cached) / 2) * (prompt - cached)
        if outputs:
            seconds += (of_output + time.context * (prompt + output / 2)) * (output - 1)
    return max(1, math.ceil(load.rate * seconds / len(load.lengths) / _MOST_LOADED))


def _told(best: _Tried, tried: Sequence[_Tried], load: Load, limits: Limits) -> Plan:
    prompt, cached, output = load.means
    reasons = [
        f"{load.rate:.2f} requests/s of {prompt:.0f} tokens, {cached:.0f} of them cached, "
        f"and answers of {output:.0f}"
    ]
    strain = limits.strain(best.told)
    if strain > 1:
        reasons.append(f"no number of workers keeps the limits; this comes nearest, {strain:.2f} times over")
    reasons += [_beside(other, limits) for other in tried if other is not best]
    prefill, decode = best.tiers
    names = (prefill.name, decode.name)
    return Plan(best.pools, names, best.cost, best.told, strain <= 1, tuple(reasons))


def _beside(other: _Tried, limits: Limits) -> str:
    """Why another fleet was not taken."""
    pools, (prefill, decode) = other.pools, other.tiers
    what = f"{pools.both} {decode.name}"
    if pools.prefill:
        what = f"{pools.prefill} {prefill.name} for prompts and {pools.decode} {decode.name} for answers"
    strain = limits.strain(other.told)
    kept = "keep the limits" if strain <= 1 else f"exceed them {strain:.2f} times"
    return f"{what}, at a cost of {other.cost:g}, {kept}"
