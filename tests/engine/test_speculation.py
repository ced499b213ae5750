"""How much is drafted: what the lookup finds, what is learned, and when drafting is left."""

from __future__ import annotations

from collections.abc import Sequence as Items
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fake_backend import FakeBackend, expected_tokens
from engine.fake_drafter import FakeDrafter
from engine.helpers import request, run, step
from headrace.engine.engine import Engine, EngineConfig
from headrace.engine.model_drafter import ModelDrafter
from headrace.engine.prompt_lookup import PromptLookup
from headrace.engine.sequence import Sequence
from headrace.engine.speculation import Ask, Draft, Speculation, count_accepted
from headrace.engine.step_cost import StepCost


def a_sequence(tokens: Items[int]) -> Sequence:
    return Sequence(request("r", tokens, 1000), 0, 1)


def looked_up(tokens: Items[int], limit: int = 4) -> Draft:
    return PromptLookup().propose([Ask(a_sequence(tokens), limit)], 0.0)[0]


def an_engine(right: float, row_cost: float = 0.001, silent: float = 0.0, **limits: int) -> Engine:
    speculation = Speculation(FakeDrafter(Random(0), right, silent), 8, row_cost)
    return Engine(FakeBackend(), EngineConfig(**{"cache_blocks": 256, **limits}), speculation)


def test_accepted_are_the_drafted_tokens_up_to_the_first_that_is_wrong():
    assert count_accepted([1, 2, 3, 4], [1, 2, 3]) == 3
    assert count_accepted([1, 2, 3, 4], [1, 9, 3]) == 1
    assert count_accepted([1, 2], [9]) == count_accepted([1], []) == 0


def test_the_lookup_goes_on_as_after_the_longest_match():
    assert looked_up([1, 2, 3, 7, 7, 9, 3, 8, 8, 1, 2, 3]) == Draft((7, 7, 9, 3), (3, 4, 5, 6))


def test_among_equal_matches_the_lookup_takes_the_most_recent():
    assert looked_up([5, 1, 6, 5, 2, 9, 5], 1).tokens == (2,)


def test_the_lookup_goes_round_in_a_period_as_long_as_asked():
    assert looked_up([1, 2, 1, 2], 5).tokens == (1, 2, 1, 2, 1)
    assert looked_up([4, 4], 3).tokens == (4, 4, 4)


def test_the_lookup_has_nothing_for_a_token_that_is_new():
    assert looked_up([1, 2, 3]) == looked_up([1]) == Draft()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 60))
def test_the_lookup_finds_the_same_however_often_it_was_asked_before(tokens: list[int], first: int):
    seq = a_sequence(tokens[:first])
    drafter = PromptLookup()
    for token in tokens[first:]:
        drafter.propose([Ask(seq, 3)], 0.0)
        seq.append(token)
    assert drafter.propose([Ask(seq, 3)], 0.0) == [looked_up(tokens, 3)]


def test_the_cost_of_steps_is_learned_from_those_observed():
    cost, random = StepCost(row_cost=0.5), Random(1)
    for _ in range(200):
        rows = random.randint(1, 9)
        cost.observe(rows, (10 + rows) * random.uniform(0.95, 1.05))
    assert cost.seconds(1) == pytest.approx(11, rel=0.1)
    assert cost.seconds(9) == pytest.approx(19, rel=0.1)


def test_the_cost_of_a_row_is_the_assumed_one_as_long_as_no_other_number_was_observed():
    cost = StepCost(row_cost=0.5)
    assert cost.seconds(3) == pytest.approx(2.0)
    for _ in range(50):
        cost.observe(1, 4.0)
    assert cost.seconds(3) == pytest.approx(8.0)


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(1e-6, 10.0)), max_size=50), st.integers(1, 600))
def test_more_rows_never_seem_to_cost_less_whatever_was_observed(seen: list[tuple[int, float]], rows: int):
    cost = StepCost(row_cost=0.1)
    for observed in seen:
        cost.observe(*observed)
    assert 0 < cost.seconds(rows) <= cost.seconds(rows + 1)


def test_a_run_that_is_right_comes_in_one_step():
    engine = an_engine(right=1.0)
    engine.add(request("r", range(10), 20))
    answer: tuple[int, ...] = ()
    runs = []
    while engine.has_work:
        tokens = step(engine)["r"].token_ids
        answer += tokens
        runs.append(len(tokens))
    assert answer == expected_tokens(range(10), 20)
    assert runs == [1, 9, 9, 1]
    assert (engine.stats.drafted_tokens, engine.stats.accepted_tokens) == (16, 16)


def test_a_step_that_is_full_of_prompts_has_no_drafted_tokens():
    engine = an_engine(right=1.0, max_batch_tokens=16)
    engine.add(request("decodes", range(10), 40))
    step(engine)
    engine.add(request("prefills", range(100, 145), 2))
    while any(seq.computed < seq.prefill_end for seq in engine.scheduler.running) or engine.scheduler.waiting:
        step(engine)
        assert engine.backend.plans[-1].rows == 16
        drafted = engine.stats.drafted_tokens
        if engine.scheduler.running[-1].computed < 45:
            assert drafted == 0
    assert run(engine)["decodes"]
    assert engine.stats.drafted_tokens > 0


def test_drafted_tokens_take_no_blocks_from_a_sequence_and_preempt_none():
    plain = Engine(FakeBackend(), EngineConfig(6))
    engine = an_engine(right=0.0, cache_blocks=6)
    for each in (plain, engine):
        for name in ("a", "b", "c"):
            each.add(request(name, [ord(name)] * 20, 12, use_prefix_cache=False))
        assert run(each)["c"] == expected_tokens([ord("c")] * 20, 12)
    assert engine.stats.drafted_tokens > 0
    assert engine.stats.preemptions == plain.stats.preemptions == 0
    assert engine.stats.steps == plain.stats.steps


def test_fewer_tokens_are_drafted_the_more_rows_there_are_and_the_more_a_row_costs():
    drafted = []
    for requests, row_cost in ((1, 0.01), (1, 0.3), (16, 0.3)):
        engine = an_engine(0.7, row_cost)
        for number in range(requests):
            engine.add(request(f"{number}", [number], 50))
        run(engine)
        drafted.append(engine.stats.drafted_tokens / requests)
    assert drafted[0] > 2 * drafted[1] > 4 * drafted[2]


def test_a_drafter_that_is_never_right_is_soon_asked_for_little():
    engine = an_engine(right=0.0, row_cost=0.1)
    engine.add(request("r", range(10), 1000))
    assert run(engine)["r"] == expected_tokens(range(10), 1000)
    assert engine.stats.drafted_tokens < 100


def test_a_model_drafts_nothing_while_prompts_fill_the_steps():
    """And is asked again once they do not."""
    smaller = FakeBackend(sure=True)
    speculation = Speculation(ModelDrafter(smaller, 64), 8)
    engine = Engine(FakeBackend(), EngineConfig(256, max_batch_tokens=64), speculation)
    engine.add(request("decodes", range(10), 40))
    step(engine)
    engine.add(request("prefills", range(100, 400), 2))
    for _ in range(4):
        step(engine)
        assert not smaller.plans
    assert run(engine)["decodes"]
    assert engine.stats.accepted_tokens == engine.stats.drafted_tokens > 0
