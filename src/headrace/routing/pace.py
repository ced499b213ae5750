"""A day's budget spread over the day: what may be spent by now, and which models keep to that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.routing.candidate import Candidate
from headrace.routing.pricing import nano

DAY_SECONDS = 86400
BURST = 0.1
"""Share of the budget that may be spent as the day begins; the rest comes evenly, second by second."""


def allowance(budget: int, now: float) -> int:
    """What may be spent of a day's budget by now, seconds since 1970: all of it as the day (UTC) ends."""
    gone = now % DAY_SECONDS / DAY_SECONDS
    return int(budget * (BURST + (1 - BURST) * gone))


def paced(candidates: Mapping[str, Candidate], room: int | None) -> dict[str, Candidate]:
    """The same, those marked that are expected to cost more than `room`, in billionths; None: no limit."""
    return {
        name: each if room is None or nano(each.cost) <= room else replace(each, in_pace=False)
        for name, each in candidates.items()
    }
