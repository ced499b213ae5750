"""What a caller of the engine sees: outputs, reuse across turns, errors, statistics."""

from __future__ import annotations

import numpy as np
import pytest

from engine.fake_backend import FakeBackend, expected_tokens
from engine.helpers import make_engine, request, run, step
from headrace.backends.sampling import SamplingParams
from headrace.backends.step import Yield
from headrace.engine.engine import Engine, EngineConfig
from headrace.engine.request import FinishReason
from headrace.engine.stats import EngineStats
from headrace.errors import ConfigError, RequestError


def test_a_request_ends_by_length_or_by_a_stop_token_which_is_its_last():
    engine = make_engine()
    tokens = expected_tokens(range(10), 8)
    engine.add(request("length", range(10), 3))
    engine.add(request("stop", range(10), 8, stop_token_ids=frozenset({tokens[4]})))
    ends = {}
    answers: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        for name, output in step(engine).items():
            answers[name] = answers.get(name, ()) + output.token_ids
            if output.finish_reason:
                ends[name] = output.finish_reason
    assert answers == {"length": tokens[:3], "stop": tokens[:5]}
    assert ends == {"length": FinishReason.LENGTH, "stop": FinishReason.STOP}


@pytest.mark.parametrize("offset", range(16))
def test_a_prefix_is_reused_to_the_token_at_every_offset_in_a_block(offset: int):
    for groups in (1, 2):
        engine = make_engine(groups=groups)
        shared = list(range(32 + offset))
        engine.add(request("first", [*shared, *range(500, 520)]))
        run(engine)
        second = [*shared, *range(600, 610)]
        engine.add(request("second", second))
        output = step(engine)["second"]
        assert output.cached_tokens == 32 + offset
        assert len(engine.backend.plans[-1].copies) == (groups if offset else 0)
        assert output.token_ids + run(engine)["second"] == expected_tokens(second, 4)


def test_the_next_turn_of_a_conversation_finds_prompt_and_answer():
    engine = make_engine()
    first = list(range(21))
    engine.add(request("turn 1", first, 30))
    answer = run(engine)["turn 1"]
    second = [*first, *answer, *range(700, 709)]
    engine.add(request("turn 2", second, 2))
    # All but the last token of the answer, which was never computed.
    assert step(engine)["turn 2"].cached_tokens == 21 + 29
    assert run(engine)["turn 2"] == expected_tokens(second, 2)[1:]


def test_a_request_whose_output_nobody_will_ask_with_leaves_the_prompts_full_blocks():
    engine = make_engine()
    first = list(range(37))
    engine.add(request("first", first, 30, cache_output=False))
    answer = run(engine)["first"]
    assert answer == expected_tokens(first, 30)
    assert engine.stats.blocks_cached == 2 and engine.stats.blocks_used == 0
    engine.cache.tree.check_integrity()
    engine.add(request("second", [*first, *answer], 2))
    assert step(engine)["second"].cached_tokens == 32


def test_a_request_without_the_prefix_cache_neither_finds_nor_leaves_anything():
    engine = make_engine()
    for name in ("a", "b"):
        engine.add(request(name, range(40), use_prefix_cache=False))
        assert run(engine)[name] == expected_tokens(range(40), 4)
    assert (engine.stats.cached_tokens, engine.stats.blocks_cached) == (0, 0)


def test_the_seed_and_the_history_reach_the_backend():
    engine = make_engine()
    engine.add(request("seed", range(10), 5, seed=7))
    engine.add(request("penalty", range(10), 5, sampling=SamplingParams(frequency_penalty=0.3)))
    answers = run(engine)
    assert answers["seed"] == expected_tokens(range(10), 5, 7)
    assert answers["penalty"] == expected_tokens(range(10), 5, penalized=True)


def test_logprobs_come_with_their_tokens_where_asked():
    engine = make_engine()
    engine.add(request("asks", range(10), 2, top_logprobs=3))
    engine.add(request("does not", range(50, 55), 2))
    outputs = step(engine)
    (logprobs,) = outputs["asks"].logprobs
    assert logprobs.chosen == -outputs["asks"].token_ids[0] and len(logprobs.token_ids) == 3
    assert outputs["does not"].logprobs == ()


def test_prompt_logits_come_chunk_by_chunk_and_the_last_row_gives_the_first_token_too():
    engine = make_engine(prefill_chunk=8)
    engine.add(request("a", range(20), 2, prompt_logits=True, use_prefix_cache=False))
    seen, tokens = [], ()
    while engine.has_work:
        output = step(engine)["a"]
        tokens += output.token_ids
        if output.prompt_logits is not None:
            assert output.logits_start == len(seen)
            seen += output.prompt_logits[:, 0].tolist()
    assert seen == list(range(20))
    assert tokens == expected_tokens(range(20), 2)
    plan = engine.backend.plans[2]
    assert plan.yield_rows.tolist() == [0, 1, 2, 3, 3]
    assert plan.yield_kinds.tolist() == [Yield.LOGITS] * 4 + [Yield.TOKEN]


def test_prompt_logits_are_reported_once_across_a_preemption():
    engine = make_engine(blocks=6)
    engine.add(request("old", [1, *range(100, 139)], 50))
    engine.add(request("young", [2, *range(100, 139)], 50, prompt_logits=True))
    rows = []
    while engine.has_work:
        output = step(engine).get("young")
        if output and output.prompt_logits is not None:
            rows += output.prompt_logits[:, 0].tolist()
    assert engine.stats.preemptions > 0
    assert rows == list(range(40))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prompt", {"prompt": ()}),
        ("prompt", {"prompt": (1, 1000)}),
        ("prompt", {"prompt": (-1, 1)}),
        ("max_tokens", {"max_tokens": 0}),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_the_name_of_its_field(field: str, changes: dict):
    engine = make_engine()
    with pytest.raises(RequestError) as error:
        engine.add(request("a", **{"prompt": (1,), **changes}))
    assert error.value.field == field
    assert not engine.has_work


def test_an_id_in_use_is_refused_and_free_again_when_its_request_has_ended():
    engine = make_engine()
    engine.add(request("a", (1,)))
    with pytest.raises(RequestError, match="'a'"):
        engine.add(request("a", (1,)))
    run(engine)
    engine.add(request("a", (1,)))


@pytest.mark.parametrize("name", ["cache_blocks", "max_batch_tokens", "max_running", "prefill_chunk"])
def test_a_limit_below_one_is_refused_by_name(name: str):
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**{"cache_blocks": 1, name: 0})


def test_a_step_never_has_more_rows_than_the_backend_takes():
    engine = Engine(FakeBackend(max_rows=10), EngineConfig(20))
    engine.add(request("a", range(50)))
    assert run(engine)["a"] == expected_tokens(range(50), 4)


def test_an_idle_engine_has_nothing_to_submit():
    engine = make_engine()
    assert not engine.submit()
    assert not engine.has_work


def test_statistics_count_what_happened():
    engine = make_engine(blocks=10, groups=2)
    engine.add(request("a", range(20), 4))
    run(engine)
    engine.add(request("b", [*range(20), 7], 4))
    step(engine)
    assert engine.stats == EngineStats(
        waiting=0,
        running=1,
        blocks_total=20,
        blocks_used=4,
        blocks_cached=2,
        prompt_tokens=41,
        computed_tokens=20 + 3 + 1,
        cached_tokens=20,
        generated_tokens=5,
        preemptions=0,
        steps=5,
        drafted_tokens=0,
        accepted_tokens=0,
        imported_tokens=0,
    )


def test_plans_hold_arrays_of_the_contracts_types():
    engine = make_engine()
    engine.add(request("a", range(20), sampling=SamplingParams(presence_penalty=1.0)))
    run(engine)
    for plan in engine.backend.plans:
        for name in ("tokens", "positions", "sequence_starts", "yield_rows", "history", "history_starts"):
            assert getattr(plan, name).dtype == np.int32
        assert plan.history.tolist()[:20] == list(range(20))
        assert all(token < 0 for token in plan.history.tolist()[20:])
