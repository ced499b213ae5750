"""How many workers are wanted when a load comes, stays and goes."""

from __future__ import annotations

from headrace.cluster.scaling import Scaler


def counts(scaler: Scaler, requests: list[int], begin: float = 0.0) -> list[int]:
    """What is wanted when a look is taken each second."""
    return [scaler.look(begin + second, load) for second, load in enumerate(requests)]


def test_workers_are_added_for_a_load_that_stays_and_not_beyond_the_most() -> None:
    scaler = Scaler(1, 4, load=10, down_seconds=60)
    assert counts(scaler, [0, 25, 25, 25, 25]) == [1, 1, 3, 3, 3]
    assert counts(scaler, [900] * 3, begin=5)[-1] == 4


def test_a_short_burst_starts_nothing() -> None:
    assert counts(Scaler(1, 4, load=10, down_seconds=60), [0, 40, 0, 0, 0]) == [1] * 5


def test_a_worker_goes_only_when_fewer_were_enough_for_long() -> None:
    scaler = Scaler(1, 4, load=10, down_seconds=10)
    counts(scaler, [30] * 5)
    wanted = counts(scaler, [5] * 5 + [30] + [15] * 12, begin=5)
    assert wanted[:15] == [3] * 15
    assert wanted[-1] == 2


def test_no_load_leaves_the_least() -> None:
    scaler = Scaler(2, 4, load=10, down_seconds=5)
    assert counts(scaler, [40] * 3 + [0] * 10)[-1] == 2
