"""Roles move when that pays, and never to and fro."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.test_planner import WORKER, load
from headrace.fleet.forecast import Forecast, Pools
from headrace.fleet.planner import Limits, splits
from headrace.fleet.role_mover import Patience, RoleMover, moves
from headrace.fleet.traffic import Load

LIMITS = Limits(ttft=2.5, tpot=0.03)
PLAIN, SPLIT = Pools(4), Pools(0, 2, 2)


def told(plain: float, split: float) -> list[tuple[Pools, Forecast]]:
    """Forecasts that strain the limits so much."""
    return [(PLAIN, Forecast(2.5 * plain, 0, 0)), (SPLIT, Forecast(2.5 * split, 0, 0))]


def test_roles_move_when_three_looks_agree_and_rest_for_a_minute() -> None:
    mover = RoleMover(LIMITS)
    assert [mover.look(at, PLAIN, told(2, 0.5)) for at in (0, 15, 30)] == [None, None, SPLIT]
    assert [mover.look(at, SPLIT, told(0.5, 2)) for at in (45, 60, 75, 90)] == [None, None, None, PLAIN]


def test_what_keeps_the_limits_stays_and_so_does_what_is_little_worse() -> None:
    mover = RoleMover(LIMITS)
    for at in range(0, 300, 15):
        assert mover.look(at, PLAIN, told(0.99, 0.1)) is None
        assert mover.look(at, PLAIN, told(1.4, 1.2)) is None


def test_looks_that_disagree_begin_anew() -> None:
    mover = RoleMover(LIMITS)
    for at, worse in enumerate((2, 2, 0.9, 2, 2)):
        assert mover.look(at, PLAIN, told(worse, 0.5)) is None
    assert mover.look(5, PLAIN, told(2, 0.5)) == SPLIT


@settings(max_examples=3, deadline=None)
@given(st.floats(0.5, 6), st.integers(100, 900), st.integers(10, 150), st.integers(0, 1000))
def test_a_steady_load_moves_roles_once_at_the_most(rate: float, prompt: int, output: int, seed: int) -> None:
    mover, current, moved = RoleMover(LIMITS), PLAIN, 0
    for look in range(12):
        seen = observed(rate, prompt, output, seed + look)
        wanted = mover.look(15.0 * look, current, splits(seen, WORKER, 4))
        if wanted is not None:
            current, moved = wanted, moved + 1
    assert moved <= 1


def observed(rate: float, prompt: int, output: int, seed: int) -> Load:
    """The last minutes of a load that is the same all the time, but for chance."""
    return load(rate * Random(seed).uniform(0.95, 1.05), prompt, 0, output, seed)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=10, max_size=100))
def test_whatever_comes_there_is_a_rest_between_moves(strains: list[tuple[float, float]]) -> None:
    mover, current, at = RoleMover(LIMITS, Patience(rest=60)), PLAIN, []
    for look, (plain, split) in enumerate(strains):
        wanted = mover.look(15.0 * look, current, told(plain, split))
        if wanted is not None:
            assert wanted != current
            current = wanted
            at.append(15.0 * look)
    assert all(later - earlier >= 60 for earlier, later in pairwise(at))


@given(st.lists(st.sampled_from(["both", "prefill", "decode"]), min_size=2, max_size=8), st.data())
def test_moves_are_as_few_as_can_be(roles, data) -> None:
    prefill = data.draw(st.integers(0, len(roles) - 1))
    wanted = Pools(0, prefill, len(roles) - prefill) if prefill else Pools(len(roles))
    named = {str(number): role for number, role in enumerate(roles)}
    found = moves(named, wanted)
    after = list((named | dict(found)).values())
    assert Pools(*(after.count(role) for role in ("both", "prefill", "decode"))) == wanted
    counts = Pools(*(roles.count(role) for role in ("both", "prefill", "decode")))
    assert len(found) == sum(max(0, to - have) for to, have in zip(wanted, counts, strict=True))
