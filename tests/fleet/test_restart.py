"""A worker that ends is started again with growing pauses, and given up when it cannot load."""

from __future__ import annotations

from headrace.fleet.restart import RestartPolicy, Restarts

POLICY = RestartPolicy(first_delay=1.0, longest_delay=5.0, stable_after=30.0, load_attempts=3)


def test_pauses_double_up_to_the_longest() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.ended(1.0, refused=False) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert restarts.count == 5


def test_a_worker_that_served_for_long_begins_a_new_row() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.ended(served, refused=False) for served in (1.0, 1.0, 31.0, 1.0)] == [1.0, 2.0, 1.0, 2.0]


def test_a_model_that_cannot_be_loaded_at_the_first_start_is_given_up_at_once() -> None:
    assert Restarts(POLICY).ended(None, refused=True) is None


def test_a_worker_that_dies_while_loading_gets_a_few_attempts() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.ended(None, refused=False) for _ in range(3)] == [1.0, 2.0, None]


def test_a_model_that_was_served_before_gets_a_few_attempts_even_when_refused() -> None:
    restarts = Restarts(POLICY)
    restarts.ended(100.0, refused=False)
    assert restarts.ended(None, refused=True) is not None
    assert restarts.ended(None, refused=True) is not None
    assert restarts.ended(None, refused=True) is None


def test_serving_begins_a_new_count_of_attempts() -> None:
    restarts = Restarts(POLICY)
    for _ in range(10):
        assert restarts.ended(None, refused=False) is not None
        assert restarts.ended(1.0, refused=False) is not None
