"""Who runs when: admission, chunked prefill, order, preemption, cancellation."""

from __future__ import annotations

import pytest

from engine.fake_backend import expected_tokens
from engine.helpers import make_engine, request, run, step
from headrace.errors import CacheTooSmallError


def names(line) -> list[str]:
    return [seq.request.id for seq in line]


def prompt(number: int, length: int) -> list[int]:
    """Prompts of different numbers share nothing."""
    return [number, *range(100, 99 + length)]


def test_a_waiting_request_is_admitted_in_the_very_step_after_one_ends():
    engine = make_engine(max_running=1)
    engine.add(request("a", prompt(1, 5), 2))
    engine.add(request("b", prompt(2, 5), 2))
    assert step(engine)["a"].finish_reason is None
    assert step(engine)["a"].finish_reason == "length"
    assert set(step(engine)) == {"b"}


def test_a_long_prompt_does_not_stall_running_streams():
    engine = make_engine(max_batch_tokens=16)
    for name in "abc":
        engine.add(request(name, prompt(ord(name), 4), 60))
    step(engine)
    engine.add(request("long", prompt(1, 400), 3))
    for _ in range(400 // 13):
        assert set(step(engine)) == {"a", "b", "c"}
        assert engine.backend.plans[-1].rows == 16
    assert set(step(engine)) == {"a", "b", "c", "long"}


def test_chunks_of_one_prompt_are_as_long_as_asked():
    engine = make_engine(prefill_chunk=7)
    engine.add(request("a", prompt(1, 20), 1))
    rows = []
    while engine.has_work:
        step(engine)
        rows.append(engine.backend.plans[-1].rows)
    assert rows == [7, 7, 6]


def test_requests_run_by_priority_and_then_by_arrival():
    engine = make_engine(max_running=1)
    for name, priority in (("late", 2), ("first", 0), ("middle", 1), ("second", 0)):
        engine.add(request(name, prompt(1, 5), 1, priority=priority))
    ended = [name for _ in range(4) for name in step(engine)]
    assert ended == ["first", "second", "middle", "late"]


def test_the_newest_request_is_preempted_when_blocks_run_out_and_resumes_before_newer_ones():
    engine = make_engine(blocks=6, max_running=2)
    engine.add(request("old", prompt(1, 40), 50))
    engine.add(request("young", prompt(2, 40), 50))
    engine.add(request("newer", prompt(3, 4), 4))
    first_tokens = []
    while engine.has_work:
        for name in step(engine):
            if name not in first_tokens:
                first_tokens.append(name)
        if "newer" in first_tokens:
            assert "young" not in names(engine.scheduler.waiting)
    assert first_tokens == ["old", "young", "newer"]
    assert engine.stats.preemptions > 0


def test_a_preempted_request_finds_its_blocks_again_if_nobody_took_them():
    engine = make_engine(blocks=8)
    engine.add(request("old", prompt(1, 48), 40))
    engine.add(request("young", prompt(2, 60), 20))
    tokens = run(engine)
    assert tokens["young"] == expected_tokens(prompt(2, 60), 20)
    assert engine.stats.preemptions == 1
    # Without the tree the second start would compute all of its 60 tokens again.
    assert engine.stats.computed_tokens < 48 + 39 + 60 + 19 + 40


def test_an_urgent_request_takes_blocks_from_a_less_urgent_one():
    engine = make_engine(blocks=4, max_batch_tokens=30)
    engine.add(request("batch", prompt(1, 60), 4, priority=1))
    step(engine)
    assert set(step(engine)) == {"batch"}
    engine.add(request("urgent", prompt(2, 30), 1))
    assert set(step(engine)) == {"urgent"}  # the other's place in the budget included
    assert run(engine)["batch"] == expected_tokens(prompt(1, 60), 4)[1:]


def test_nobody_is_preempted_in_vain():
    engine = make_engine(blocks=6)
    engine.add(request("first", prompt(1, 60), 4))
    engine.add(request("batch", prompt(2, 20), 4, priority=1))
    step(engine)
    engine.add(request("urgent", prompt(3, 60), 1))
    assert set(step(engine)) == {"first", "batch"}
    assert engine.stats.preemptions == 0


def test_a_request_that_waits_for_blocks_is_not_overtaken_by_a_smaller_one():
    engine = make_engine(blocks=6)
    engine.add(request("first", prompt(1, 40), 8))
    step(engine)
    engine.add(request("large", prompt(2, 70), 1))
    engine.add(request("small", prompt(3, 4), 1))
    while engine.has_work:
        outputs = step(engine)
        if "small" in outputs or "large" in outputs:
            assert "large" in outputs
            break
    run(engine)


def test_a_request_that_fills_the_cache_to_its_last_slot_runs_even_on_a_partial_match():
    engine = make_engine(blocks=3)
    engine.add(request("first", prompt(1, 20), 1))
    run(engine)
    whole = [*prompt(1, 18), *range(500, 530)]
    engine.add(request("whole", whole, 1))
    assert run(engine)["whole"] == expected_tokens(whole, 1)


def test_a_request_that_could_never_fit_is_refused():
    engine = make_engine(blocks=3)
    assert engine.longest_request == 49
    engine.add(request("fits", prompt(1, 40), 9))
    with pytest.raises(CacheTooSmallError, match=r"50 tokens.*can hold 49"):
        engine.add(request("too long", prompt(2, 40), 10))
    assert run(engine)["fits"] == expected_tokens(prompt(1, 40), 9)


def test_cancelling_a_waiting_request_removes_it():
    engine = make_engine(max_running=1)
    engine.add(request("a", prompt(1, 5)))
    engine.add(request("b", prompt(2, 5)))
    step(engine)
    assert engine.cancel("b")
    assert not engine.cancel("b")
    assert set(run(engine)) == {"a"}


@pytest.mark.parametrize("end", ["cancel", "finish"])
def test_ending_a_request_between_steps_frees_its_blocks_at_once(end: str):
    engine = make_engine()
    engine.add(request("a", prompt(1, 40), 9))
    step(engine)
    assert getattr(engine, end)("a")
    assert engine.stats.blocks_used == 0
    assert not engine.has_work


@pytest.mark.parametrize("end", ["cancel", "finish"])
def test_ending_a_request_in_flight_drops_its_result_and_frees_its_blocks_when_collected(end: str):
    engine = make_engine()
    engine.add(request("a", prompt(1, 40), 9))
    engine.submit()
    assert getattr(engine, end)("a")
    assert engine.has_work and engine.stats.blocks_used == 3
    assert engine.collect() == []
    assert engine.stats.blocks_used == 0
    assert not engine.has_work
    engine.add(request("b", prompt(1, 40), 1))
    assert step(engine)["b"].cached_tokens == 39  # what it computed was not in vain
