"""A prefix that is being computed is joined; the counters prove that it is computed once."""

from __future__ import annotations

from engine.fake_backend import expected_tokens
from engine.helpers import make_engine, request, run, step

PREFIX = list(range(1000))


def prompts(count: int) -> dict[str, list[int]]:
    return {f"r{n}": [*PREFIX, *[n] * 10] for n in range(count)}


def check(engine, tokens, asked: dict[str, list[int]]) -> None:
    for name, ids in asked.items():
        assert tokens[name] == expected_tokens(ids, 4), name
    assert engine.stats.blocks_used == 0


def test_four_that_arrive_at_once_with_the_same_new_prefix_compute_it_once():
    engine = make_engine(max_batch_tokens=128)
    asked = prompts(4)
    for name, ids in asked.items():
        engine.add(request(name, ids))
    check(engine, run(engine), asked)
    assert engine.stats.computed_tokens == 1000 + 4 * (10 + 3)
    assert engine.stats.cached_tokens == 3 * 1000


def test_a_second_request_computes_only_what_is_its_own():
    engine = make_engine()
    asked = prompts(2)
    engine.add(request("r0", asked["r0"]))
    tokens = run(engine)
    before = engine.stats.computed_tokens
    engine.add(request("r1", asked["r1"]))
    check(engine, tokens | run(engine), asked)
    assert engine.stats.computed_tokens - before == 10 + 3


def test_a_complete_hit_still_computes_one_token():
    engine = make_engine()
    for name in ("a", "b"):
        engine.add(request(name, range(64), 1))
        run(engine)
    assert engine.stats.computed_tokens == 64 + 1


def test_equal_prompts_at_once_compute_the_prompt_once():
    engine = make_engine(max_batch_tokens=50)
    for name in ("a", "b", "c"):
        engine.add(request(name, range(333), 1))
    run(engine)
    assert engine.stats.computed_tokens == 333 + 2


def test_followers_hold_their_place_but_neither_rows_nor_blocks():
    engine = make_engine(prefill_chunk=128)
    for name, ids in prompts(3).items():
        engine.add(request(name, ids))
    step(engine)
    assert engine.stats.running == 3
    assert engine.stats.blocks_used == -(-1010 // 16)
    assert len(engine.backend.plans[-1].sequence_starts) == 2


def test_a_stranger_runs_beside_followers():
    engine = make_engine(max_batch_tokens=512)
    engine.add(request("leader", [*PREFIX[:300], 1]))
    engine.add(request("follower", [*PREFIX[:300], 2]))
    engine.add(request("stranger", [*range(2, 50)]))
    assert set(step(engine)) == {"leader", "stranger"}


def test_when_the_leader_is_cancelled_the_next_takes_over_and_the_others_follow_it():
    asked = prompts(4)
    for in_flight in (False, True):
        engine = make_engine(max_batch_tokens=128)
        for name, ids in asked.items():
            engine.add(request(name, ids))
        step(engine)
        engine.submit()
        if in_flight:
            engine.cancel("r0")
            engine.collect()
        else:
            engine.collect()
            engine.cancel("r0")
        check(engine, run(engine), {name: asked[name] for name in ("r1", "r2", "r3")})
        assert engine.stats.computed_tokens == 1000 + 3 * (10 + 3)


def test_when_the_leader_is_preempted_its_follower_takes_over():
    engine = make_engine(blocks=80, max_batch_tokens=128)
    engine.add(request("leader", [*PREFIX, 1, 1, 1], priority=2))
    engine.add(request("follower", [*PREFIX, 2, 2, 2], priority=1))
    step(engine)
    engine.add(request("urgent", range(1, 700)))
    tokens = run(engine)
    assert engine.stats.preemptions > 0
    assert tokens["follower"] == expected_tokens([*PREFIX, 2, 2, 2], 4)
    assert tokens["leader"] == expected_tokens([*PREFIX, 1, 1, 1], 4)


def test_an_urgent_follower_lends_its_leader_its_place_in_the_order():
    engine = make_engine(max_batch_tokens=100)
    engine.add(request("leader", [*PREFIX[:300], 1], priority=2))
    step(engine)
    engine.add(request("urgent", [*PREFIX[:300], 2]))
    engine.add(request("between", range(1, 900), priority=1))
    assert [len(step(engine)) for _ in range(2)] == [0, 0]
    assert set(step(engine)) == {"leader", "urgent"}


def test_a_follower_that_finds_no_blocks_waits_and_is_not_overtaken_by_a_later_one():
    engine = make_engine(blocks=10, prefill_chunk=16)
    engine.add(request("leader", PREFIX[:100], 12))
    engine.add(request("large", [*PREFIX[:32], *range(300, 370)], 1))
    engine.add(request("small", [*PREFIX[:32], *range(400, 405)], 1))
    leader_ended = False
    while engine.has_work:
        outputs = step(engine)
        assert leader_ended or "small" not in outputs
        leader_ended = leader_ended or ("leader" in outputs and outputs["leader"].finish_reason is not None)


def test_a_follower_released_in_the_middle_joins_who_shares_more():
    engine = make_engine(max_batch_tokens=64)
    engine.add(request("leader", [*PREFIX[:200], 5]))
    engine.add(request("one", [*PREFIX[:500], 6], 1))
    engine.add(request("two", [*PREFIX[:500], 7], 1))
    run(engine)
    assert engine.stats.computed_tokens == 500 + 1 + 3 + 1 + 1


def test_others_namespaces_and_requests_without_the_cache_are_not_joined():
    engine = make_engine(max_batch_tokens=512)
    engine.add(request("plain", range(200)))
    engine.add(request("salted", range(200), salt="s"))
    engine.add(request("uncached", range(100), use_prefix_cache=False))
    outputs = step(engine)
    assert set(outputs) == {"plain", "salted", "uncached"}
    assert all(output.cached_tokens == 0 for output in outputs.values())
    run(engine)
    assert engine.stats.cached_tokens == 0


def test_nobody_joins_or_finds_a_request_without_the_cache():
    engine = make_engine(max_batch_tokens=512)
    engine.add(request("uncached", range(100), use_prefix_cache=False))
    engine.add(request("plain", range(100)))
    assert set(step(engine)) == {"uncached", "plain"}
    assert step(engine)
    assert engine.stats.cached_tokens == 0
