"""Blocks that are filled or read from elsewhere while steps compute."""

from __future__ import annotations

from engine.fake_backend import _chain, expected_tokens
from engine.helpers import PLAIN, make_engine, request, run, step
from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.engine import Engine
from headrace.engine.request import FinishReason
from headrace.engine.transfers import Reservation

PROMPT = tuple(range(100))


def reserved(engine: Engine) -> Reservation:
    """The one import that the next step starts, beside whatever that computes."""
    if engine.submit():
        engine.collect()
    (reservation,) = engine.transfers.news().reserved
    return reservation


def fill(engine: Engine, reservation: Reservation, tokens, count: int) -> None:
    """Write the first tokens' keys and values into what was reserved, and say so."""
    chain = 0
    for position, token in enumerate(tokens[:count]):
        chain = _chain(chain, token)
        if position >= reservation.start:
            index, slot = divmod(position - reservation.start, BLOCK_TOKENS)
            for group, blocks in enumerate(reservation.blocks):
                engine.backend.tokens[group][blocks[index], slot] = token
                engine.backend.chains[group][blocks[index], slot] = chain
    engine.transfers.imported(reservation.id, count)


def test_what_arrives_is_not_computed_and_the_rest_is():
    for arrived in (0, 16, 50, 99):
        engine = make_engine(groups=2)
        engine.add(request("a", PROMPT, importing=True))
        reservation = reserved(engine)
        assert (reservation.start, reservation.end, len(reservation.blocks[0])) == (0, 99, 7)
        if arrived:
            fill(engine, reservation, PROMPT, arrived)
        assert not engine.submit() and engine.has_work
        engine.transfers.end_import("a")
        assert run(engine) == {"a": expected_tokens(PROMPT, 4)}
        assert engine.stats.computed_tokens == 100 - arrived + 3
        assert engine.stats.imported_tokens == arrived


def test_only_what_follows_the_cached_blocks_is_asked_for():
    engine = make_engine()
    engine.add(request("first", PROMPT[:40], 1))
    run(engine)
    engine.add(request("a", PROMPT, importing=True))
    reservation = reserved(engine)
    assert (reservation.start, len(reservation.blocks[0])) == (32, 5)
    fill(engine, reservation, PROMPT, 64)
    engine.transfers.end_import("a")
    assert run(engine)["a"] == expected_tokens(PROMPT, 4)


def test_others_share_what_has_arrived_and_wait_for_what_will():
    engine = make_engine()
    engine.add(request("a", PROMPT, importing=True))
    reservation = reserved(engine)
    engine.add(request("follower", (*PROMPT[:90], 7)))
    fill(engine, reservation, PROMPT, 64)
    assert not engine.submit()
    engine.add(request("shorter", (*PROMPT[:64], 8)))
    assert set(step(engine)) == {"shorter"}
    fill(engine, reservation, PROMPT, 99)
    outputs = step(engine)
    assert set(outputs) == {"shorter", "follower"}
    assert outputs["follower"].cached_tokens == 90
    engine.transfers.end_import("a")
    assert run(engine)["a"] == expected_tokens(PROMPT, 4)


def test_an_import_can_end_before_it_began():
    engine = make_engine()
    engine.add(request("a", PROMPT, importing=True))
    engine.transfers.end_import("a")
    assert run(engine) == {"a": expected_tokens(PROMPT, 4)}
    assert engine.transfers.news() == ([], [], [])


def test_cancelling_leaves_the_blocks_to_the_import_until_it_has_stopped():
    engine = make_engine(blocks=8)
    engine.add(request("a", PROMPT, importing=True))
    reserved(engine)
    assert engine.cancel("a")
    assert engine.transfers.news().unwanted == ["a"]
    engine.add(request("b", range(200, 300)))
    assert not engine.submit(), "blocks were given away that may still be written"
    engine.transfers.end_import("a")
    assert run(engine) == {"b": expected_tokens(range(200, 300), 4)}
    assert engine.stats.blocks_used == 0


def test_a_request_cancelled_before_it_has_blocks_is_gone_at_once():
    engine = make_engine()
    engine.add(request("a", PROMPT, importing=True))
    assert engine.cancel("a") and not engine.has_work


def test_who_needs_the_blocks_of_an_import_more_gets_them_when_it_has_stopped():
    engine = make_engine(blocks=8)
    engine.add(request("a", PROMPT, importing=True, priority=1))
    reservation = reserved(engine)
    fill(engine, reservation, PROMPT, 32)
    engine.add(request("urgent", range(200, 300)))
    assert not engine.submit()
    assert engine.transfers.news().unwanted == ["a"]
    assert not engine.submit()
    assert engine.transfers.news().unwanted == []
    engine.transfers.end_import("a")
    assert set(step(engine)) == {"urgent"}
    assert engine.stats.preemptions == 1
    assert run(engine)["a"] == expected_tokens(PROMPT, 4)


def test_a_prefill_ends_when_the_whole_prompt_is_cached_and_samples_nothing():
    engine = make_engine(max_batch_tokens=64)
    engine.add(request("a", PROMPT, 0, prefill_only=True))
    assert step(engine) == {}
    output = step(engine)["a"]
    assert (output.token_ids, output.finish_reason) == ((), FinishReason.STOP)
    assert engine.cache.tree.match(PLAIN, PROMPT, 100).length == 100
    assert not engine.has_work and engine.stats.blocks_used == 0


def test_an_export_is_told_of_full_blocks_as_they_are_computed_and_of_the_begun_one_at_the_end():
    engine = make_engine(max_batch_tokens=40)
    engine.add(request("a", PROMPT, 0, prefill_only=True, exporting=True))
    told = []
    while engine.submit():
        engine.collect()
        told += engine.transfers.news().progress
    assert [(part.tokens, part.complete) for part in told] == [(32, False), (80, False), (100, True)]
    last = told[-1].blocks[0]
    assert [part.blocks[0] for part in told] == [last[:2], last[:5], last]
    assert engine.backend.read(0, list(last), 100)[0] == list(PROMPT)


def test_exported_blocks_stay_until_they_have_been_read_though_their_request_has_ended():
    engine = make_engine(blocks=10)
    engine.add(request("a", PROMPT, 0, prefill_only=True, exporting=True))
    step(engine)
    engine.add(request("b", range(200, 300)))
    assert not engine.submit() and engine.has_work
    (progress,) = engine.transfers.news().progress
    assert progress.complete
    engine.transfers.end_export("a")
    assert run(engine) == {"b": expected_tokens(range(200, 300), 4)}


def test_a_cached_prompt_is_exported_from_the_cache():
    engine = make_engine()
    engine.add(request("first", PROMPT, 1))
    run(engine)
    engine.add(request("a", PROMPT, 0, prefill_only=True, exporting=True))
    engine.submit()
    assert [part.tokens for part in engine.transfers.news().progress] == [96]
    engine.collect()
    assert [part.tokens for part in engine.transfers.news().progress] == [100]


def test_an_exporting_stream_that_finds_no_block_stands_still_until_its_export_has_stopped():
    engine = make_engine(blocks=8)
    engine.add(request("old", range(300, 364), 40))
    engine.add(request("a", range(64), 30, exporting=True))
    while step(engine).keys() == {"old", "a"}:
        engine.transfers.news()
    assert engine.transfers.news().unwanted == ["a"]
    engine.transfers.end_export("a")
    tokens = run(engine)
    assert engine.stats.preemptions > 0
    assert tokens["a"] == expected_tokens(range(64), 30)[-len(tokens["a"]) :]
