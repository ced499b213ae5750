"""How many workers are wanted when a load comes, stays and goes."""

from __future__ import annotations

from headrace.cluster.scaling import Scaler


def counts(scaler: Scaler, requests: list[int], begin: float = 0.0) -> list[int]:
    """What is wanted when a look is taken each second."""
    return [scaler.look(begin + second, load) for second, load in enumerate(requests)]


def test_workers_are_added_for_a_load_that_stays_and_not_beyond_the_most() -> None:
    scaler = Scaler(1, 4, load=10, down_seconds=60)
    assert counts(scaler, [0] * 5 + [25] * 6)[-1] == 3
    assert counts(scaler, [900] * 6, begin=11)[-1] == 4


def test_what_counts_is_the_mean_of_a_load_that_goes_up_and_down() -> None:
    assert counts(Scaler(1, 4, load=10, down_seconds=60), [12, 28] * 6)[4:] == [2] * 8


def test_a_short_burst_starts_nothing() -> None:
    assert counts(Scaler(1, 4, load=10, down_seconds=60), [0] * 5 + [40] + [0] * 5) == [1] * 11


def test_a_worker_goes_only_when_fewer_were_enough_for_long() -> None:
    scaler = Scaler(1, 4, load=10, down_seconds=10)
    assert counts(scaler, [30] * 5)[-1] == 3
    assert counts(scaler, [5] * 8 + [30] * 4, begin=5) == [3] * 12
    wanted = counts(scaler, [15] * 20, begin=17)
    assert (wanted[:10], wanted[-1]) == ([3] * 10, 2)


def test_no_load_leaves_the_least() -> None:
    scaler = Scaler(2, 4, load=10, down_seconds=5)
    counts(scaler, [40] * 6)
    assert counts(scaler, [0] * 12, begin=6)[-1] == 2


def test_without_patience_a_worker_goes_with_its_load() -> None:
    scaler = Scaler(1, 4, load=10, down_seconds=0)
    assert counts(scaler, [40] * 6 + [0] * 4) == [1] * 4 + [4] * 2 + [3, 2, 1, 1]
