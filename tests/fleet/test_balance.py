"""Which replica a request goes to: who holds its prefix, who is free, and when the one beats the other."""

from __future__ import annotations

import time
from random import Random

import pytest

from headrace.engine.block_digest import chain, root_digest
from headrace.engine.request import PrefixNamespace
from headrace.fleet.balance import Ask, Balancer, Policy
from headrace.fleet.prefix_picture import PrefixPicture
from headrace.fleet.step_time import StepTime

ROOT = root_digest(PrefixNamespace("model"))
SPEED = StepTime(base=0.01, row=0.001)
NAMES = ("a", "b", "c", "d")


def ask(seed: int, tokens: int = 1600) -> Ask:
    random = Random(seed)
    return Ask(tokens, [*chain(ROOT, [random.randrange(1000) for _ in range(tokens)])])


def fleet(policy: Policy = Policy.PREDICTED_TTFT) -> Balancer:
    balancer = Balancer(policy)
    for name in NAMES:
        balancer.add(name, SPEED, 256)
    return balancer


def serve(balancer: Balancer, request_id: str, asked: Ask, now: float) -> str:
    """Dispatch a request and answer it when it was predicted, storing its blocks; returns by whom."""
    chosen = balancer.choose(asked, NAMES, now)
    balancer.dispatched(request_id, asked, chosen, now)
    balancer.cache_events(chosen.replica, asked.digests, [])
    balancer.first_token(request_id, now + chosen.ttft)
    balancer.finished(request_id, now + chosen.ttft)
    return chosen.replica


def test_a_prefix_is_computed_where_it_is_cached():
    balancer = fleet()
    holders = {seed: serve(balancer, f"first {seed}", ask(seed), 10.0 * seed) for seed in range(8)}
    assert set(holders.values()) == set(NAMES), "idle replicas take turns"
    for seed, holder in holders.items():
        chosen = balancer.choose(ask(seed), NAMES, 1000.0)
        assert chosen.replica == holder and chosen.cached_tokens == 1599


def test_a_prefix_that_is_on_its_way_counts_as_cached():
    balancer = fleet()
    first = balancer.choose(ask(1), NAMES, 0.0)
    balancer.dispatched("first", ask(1), first, 0.0)
    second = balancer.predict(ask(1), first.replica, 0.0)
    assert second.cached_tokens == 1599 and second.wait > 0
    balancer.finished("first", 0.1)  # cancelled: nothing was stored
    assert balancer.choose(ask(1), NAMES, 0.2).cached_tokens == 0


def test_no_replica_drowns_because_it_holds_a_hot_prefix():
    balancer = fleet()
    shared = [7] * 160
    given = dict.fromkeys(NAMES, 0)
    for number in range(200):
        tokens = [*shared, *(1000 + number for _ in range(800))]
        asked = Ask(len(tokens), [*chain(ROOT, tokens)])
        chosen = balancer.choose(asked, NAMES, 0.0)
        balancer.dispatched(str(number), asked, chosen, 0.0)
        given[chosen.replica] += 1
    assert max(given.values()) <= 1.1 * min(given.values())


def test_a_busy_holder_is_passed_by_once_its_wait_is_longer_than_the_work():
    balancer = fleet()
    holder = serve(balancer, "first", ask(1), 0.0)
    waits = {True: [0.0], False: [1e9]}
    for number in range(60):
        asked = ask(100 + number, 100)
        balancer.dispatched(str(number), asked, balancer.predict(asked, holder, 10.0), 10.0)
        held = balancer.choose(ask(1), NAMES, 10.0).replica == holder
        waits[held].append(balancer.predict(ask(1), holder, 10.0).wait)
    work = balancer.predict(ask(1), next(name for name in NAMES if name != holder), 10.0).prefill
    assert work / 5 < max(waits[True]) < min(waits[False]) < 2 * work


def test_a_prefix_stays_where_it_is_cached_while_all_replicas_are_busy():
    balancer = fleet()
    holder = serve(balancer, "first", ask(1), 0.0)
    for number in range(4 * 20):
        asked = ask(100 + number)
        balancer.dispatched(str(number), asked, balancer.predict(asked, NAMES[number % 4], 10.0), 10.0)
    more = ask(999, 800)  # which alone would send it to another one
    balancer.dispatched("more", more, balancer.predict(more, holder, 10.0), 10.0)
    assert balancer.choose(ask(1), NAMES, 10.0).replica == holder


def test_long_answers_to_one_hot_prompt_are_spread():
    balancer = fleet()
    running: list[tuple[float, str]] = []
    given = dict.fromkeys(NAMES, 0)
    now = 0.0
    for number in range(400):
        now += 0.25
        while running and running[0][0] < now:
            balancer.finished(running.pop(0)[1], now)
        chosen = balancer.choose(ask(1), NAMES, now)
        balancer.dispatched(str(number), ask(1), chosen, now)
        balancer.cache_events(chosen.replica, ask(1).digests, [])
        balancer.first_token(str(number), now + chosen.ttft)
        running.append((now + 15.0, str(number)))
        given[chosen.replica] += 1
    assert max(given.values()) <= 1.2 * min(given.values())


def test_a_lone_request_stays_where_its_prompt_is_cached():
    balancer = fleet()
    holders = [serve(balancer, str(number), ask(1), 30.0 * number) for number in range(20)]
    assert len(set(holders)) == 1


def test_the_wait_shrinks_as_time_passes_and_as_first_tokens_come():
    balancer = fleet()
    for number in range(4):
        asked = ask(number)
        balancer.dispatched(str(number), asked, balancer.predict(asked, "a", 0.0), 0.0)
    full = balancer.predict(ask(9), "a", 0.0).wait
    assert balancer.predict(ask(9), "a", full / 2).wait == pytest.approx(full / 2)
    for number in range(4):
        balancer.first_token(str(number), full * (number + 1) / 4)
    assert balancer.predict(ask(9), "a", full).wait == 0


def test_a_replica_is_predicted_by_what_it_shows_and_a_new_one_by_what_others_do():
    balancer = fleet()
    now = 0.0
    for number in range(100):
        for name, slowness in (("a", 3.0), ("b", 1.0)):
            asked = ask(number)
            balancer.dispatched(f"{name}{number}", asked, balancer.predict(asked, name, now), now)
            now += slowness * SPEED.prefill_seconds(0, 1600, 256)
            balancer.first_token(f"{name}{number}", now)
            balancer.finished(f"{name}{number}", now)
    slow, fast, new = (balancer.predict(ask(999), name, now).ttft for name in ("a", "b", "c"))
    assert slow == pytest.approx(3 * fast, rel=0.05)
    assert new == pytest.approx(2 * fast, rel=0.05)


def test_a_replica_that_is_gone_takes_its_requests_and_its_cache_with_it():
    balancer = fleet()
    chosen = balancer.choose(ask(1), NAMES, 0.0)
    balancer.dispatched("first", ask(1), chosen, 0.0)
    balancer.cache_events(chosen.replica, ask(1).digests, [])
    balancer.remove(chosen.replica)
    balancer.first_token("first", 1.0)
    balancer.finished("first", 1.0)
    balancer.cache_events(chosen.replica, ask(1).digests, [])
    balancer.add(chosen.replica, SPEED, 256)
    assert balancer.predict(ask(1), chosen.replica, 1.0)[1:3] == (0, 0.0)
    assert balancer.choose(ask(2), [chosen.replica], 1.0).replica == chosen.replica


def test_the_other_policies_take_turns_or_count_requests():
    balancer = fleet(Policy.ROUND_ROBIN)
    assert [balancer.choose(ask(1), NAMES, 0.0).replica for _ in range(5)] == ["a", "b", "c", "d", "a"]
    balancer = fleet(Policy.LEAST_LOADED)
    assert [serve_without_end(balancer, number) for number in range(4)] == ["a", "b", "c", "d"]
    balancer.finished("2", 1.0)
    assert balancer.choose(ask(1), NAMES, 1.0).replica == "c"


def serve_without_end(balancer: Balancer, number: int) -> str:
    chosen = balancer.choose(ask(number), NAMES, 0.0)
    balancer.dispatched(str(number), ask(number), chosen, 0.0)
    return chosen.replica


def test_a_choice_among_four_replicas_takes_less_than_a_millisecond():
    balancer = fleet()
    for number in range(50):
        serve_without_end(balancer, number)
    tokens, times = [*range(4000)], []
    for number in range(50):
        begun = time.perf_counter()
        asked = Ask(len(tokens), [*chain(ROOT, tokens)])
        chosen = balancer.choose(asked, NAMES, 0.0)
        balancer.dispatched(f"timed {number}", asked, chosen, 0.0)
        times.append(time.perf_counter() - begun)
    assert min(times) < 1e-3


def test_a_picture_forgets_the_oldest_digests_when_there_are_too_many():
    picture = PrefixPicture(most=10)
    old, new = ask(1, 160).digests, ask(2, 160).digests
    picture.changed(old, [])
    picture.changed(new, [])
    assert (picture.blocks_held(old), picture.blocks_held(new), len(picture)) == (0, 10, 10)
    picture.changed([], new[5:])
    assert picture.blocks_held(new) == 5
