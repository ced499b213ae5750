"""What answers cost: by a price list, or by the time that they keep workers busy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.pricing import LocalPrice, RemotePrice, nano, price_of, speeds_of
from headrace.routing.tables import ModelTable


def test_a_remote_is_paid_by_its_list() -> None:
    price = price_of(ModelTable(url="https://h", input_price=2.5, output_price=10))
    assert price.cost(1000, 0, 100) == pytest.approx(0.0035)
    assert price.cost(1000, 400, 100) == pytest.approx(0.0035)
    price = RemotePrice(2.5, 1.25, 10.0)
    assert price.cost(1000, 400, 100) == pytest.approx(0.003)
    assert price.cost(1000, 5000, 0) == price.cost(1000, 1000, 0)


def test_before_anything_ran_the_priors_say_what_a_local_answer_costs() -> None:
    price = LocalPrice(3.6, prefill_speed=1000, decode_speed=10)
    assert price.cost(1000, 0, 10) == pytest.approx(0.002)
    assert price.cost(1000, 1000, 10) == pytest.approx(0.001)
    assert price_of(ModelTable(cost_per_hour=0.0)).cost(1000, 0, 1000) == 0


def test_the_speeds_of_prompts_and_answers_are_learnt() -> None:
    price, draw = LocalPrice(3600.0), np.random.default_rng(0)
    for _ in range(300):
        prompt, answer = int(draw.integers(50, 4000)), int(draw.integers(5, 300))
        seconds = (prompt / 2000 + answer / 50) * draw.lognormal(0, 0.2)
        price.observed(seconds, prompt, answer)
    assert price.cost(2000, 0, 0) == pytest.approx(1.0, rel=0.25)
    assert price.cost(0, 0, 50) == pytest.approx(1.0, rel=0.25)


def test_what_runs_together_shares_the_time_and_idle_time_is_nobodys() -> None:
    alone, crowded = LocalPrice(3.6), LocalPrice(3.6)
    for at in range(100):
        alone.began(100.0 * at)
        alone.ended(100.0 * at + 2, 100, 40)
        for _ in range(4):
            crowded.began(100.0 * at)
        for _ in range(4):
            crowded.ended(100.0 * at + 2, 100, 40)
    assert alone.cost(100, 0, 40) == pytest.approx(0.002, rel=0.01)
    assert crowded.cost(100, 0, 40) == pytest.approx(0.0005, rel=0.01)


def test_the_cost_is_that_of_all_workers() -> None:
    price = LocalPrice(7.2, workers=2)
    for at in range(100):
        price.began(10.0 * at)
        price.began(10.0 * at)
        price.ended(10.0 * at + 2, 100, 40)
        price.ended(10.0 * at + 2, 100, 40)
    assert price.cost(100, 0, 40) == pytest.approx(0.002, rel=0.01)


def test_what_was_long_ago_no_longer_counts() -> None:
    price = LocalPrice(3600.0)
    for speed in (100, 25):
        for _ in range(300):
            price.observed(100 / speed, 0, 100)
    assert price.cost(0, 0, 25) == pytest.approx(1.0, rel=0.05)


@given(
    st.lists(st.tuples(st.floats(1e-3, 100), st.integers(0, 10**5), st.integers(0, 10**4)), max_size=20),
    st.integers(0, 10**5),
    st.integers(0, 10**5),
)
def test_a_cost_is_never_negative_and_grows_with_the_work(
    samples: list[tuple[float, int, int]], prompt: int, answer: int
) -> None:
    price = LocalPrice(1.0)
    for sample in samples:
        price.observed(*sample)
    cost = price.cost(prompt, 0, answer)
    assert 0 <= cost <= price.cost(prompt + 1, 0, answer) <= price.cost(prompt + 1, 0, answer + 1) < 1e9
    assert price.cost(prompt, prompt // 2, answer) <= cost


def test_costs_are_kept_in_billionths_rounded_up() -> None:
    assert nano(0.1) == 100_000_000
    assert nano(3e-7) == 300
    assert nano(1.2345678901) == 1_234_567_891
    assert nano(1e-12) == 1
    assert nano(0) == 0


def test_what_is_not_measured_of_one_model_is_taken_from_its_peers() -> None:
    prices: list[LocalPrice] = []
    small, large = (LocalPrice(1.0, 1, *speeds_of(size), prices) for size in (10**8, 10**9))
    prices += [small, large]
    before = small.cost(500, 0, 200)
    assert before == pytest.approx(large.cost(500, 0, 200) / 10)
    large.observed(60.0, 0, 60 * 300)  # ten times as fast as guessed, for many are answered at a time
    assert small.cost(500, 0, 200) == pytest.approx(before / 10)
    small.observed(60.0, 0, 60 * 300)  # no faster than guessed, for it was asked for one answer at a time
    together = 120 / (60 * 300 / 30 + 60 * 300 / 300)  # of the speeds guessed
    assert small.cost(0, 0, 200) == pytest.approx(together * 200 / 300 / 3600)
    assert small.cost(0, 0, 200) < large.cost(0, 0, 200)


def test_what_a_model_takes_alone_is_the_price_until_it_is_measured_at_work() -> None:
    prices: list[LocalPrice] = []
    wide, deep = (LocalPrice(3600.0, 1, *speeds_of(size), prices) for size in (10**9, 10**8))
    prices += [wide, deep]
    wide.alone(0.001, 0.01)
    deep.alone(0.002, 0.06)
    deep.alone(0.003, 0.04)
    assert wide.cost(100, 0, 10) == pytest.approx(0.1 + 0.1)
    assert deep.cost(100, 0, 10) == pytest.approx(0.2 + 0.4)
    for _ in range(100):
        wide.observed(2.0, 1000, 300)  # twice as fast as alone, for several share the steps
    assert wide.cost(1000, 0, 300) == pytest.approx(2.0)
    assert deep.cost(1000, 0, 300) == pytest.approx(7.0)


def test_a_price_that_was_measured_is_taken_up_elsewhere() -> None:
    price, draw = LocalPrice(3600.0), np.random.default_rng(0)
    for _ in range(50):
        prompt, answer = int(draw.integers(50, 4000)), int(draw.integers(5, 300))
        price.observed(prompt / 2000 + answer / 50, prompt, answer)
    guessed_otherwise = LocalPrice(1800.0, 1, *speeds_of(10**9))
    assert guessed_otherwise.load(json.loads(json.dumps(price.save())), 0.0)
    assert guessed_otherwise.cost(2000, 0, 50) == pytest.approx(price.cost(2000, 0, 50) / 2, rel=0.05)
    assert guessed_otherwise.save() == price.save()
    price.alone(0.001, 0.01)
    later = LocalPrice(3600.0)
    assert later.load(json.loads(json.dumps(price.save())), 0.0)
    assert later.cost(2000, 0, 50) == pytest.approx(price.cost(2000, 0, 50))


@pytest.mark.parametrize(
    "saved",
    [None, {"alone": None, "sums": [1.0]}, {"alone": [0, 1], "sums": [0.0] * 6},
     {"alone": None, "sums": [1.0, 0, 0, 0, 0, 0]}, {"alone": None, "sums": [1.0, 1.0, 1.0, 1.0, 9.0, 1.0]}],
)  # fmt: skip
def test_what_is_damaged_is_not_taken_up(saved: object) -> None:
    price = LocalPrice(1.0)
    assert not price.load(saved, 0.0)
    assert price.save() == LocalPrice(1.0).save()
