"""Pins, and what is told of the tree, against a model that knows every token sequence ever put in."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from engine.helpers import PLAIN, make_engine, request, run
from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.block_pool import BlockPool
from headrace.engine.pins import Pins
from headrace.engine.prefix_report import explain, hot
from headrace.engine.prefix_tree import Match, Node, PrefixTree
from headrace.errors import RequestError


class Cache:
    """A tree with pins, filled as ended requests would fill it."""

    def __init__(self, blocks: int = 64, limit: int = 32):
        self.pool = BlockPool(blocks)
        self.tree = PrefixTree([self.pool])
        self.pins = Pins(self.tree, limit)

    def put(self, tokens: Sequence[int]) -> None:
        match = self.tree.match(PLAIN, tokens, len(tokens))
        self.tree.lock(Match(match.path))
        node: Node | None = match.path[-1] if match.path else None
        for start in range(len(match.path) * BLOCK_TOKENS, len(tokens), BLOCK_TOKENS):
            if not self.pool.free and not self.tree.evict():
                break
            block = self.pool.allocate()
            key = tuple(tokens[start : start + BLOCK_TOKENS])
            found = self.tree.insert(PLAIN, node, key, (block,))
            if found.blocks != (block,):
                self.pool.release(block)
                break
            node = found
        self.tree.unlock(node)

    def found(self, tokens: Sequence[int]) -> int:
        return self.tree.match(PLAIN, tokens, len(tokens)).length

    def evict_all(self) -> None:
        while self.tree.evict():
            pass

    def check(self) -> None:
        self.tree.check_integrity()
        self.pool.check_integrity()
        pinned = sum(1 for node in self.tree.nodes() if node.pins)
        assert pinned == self.pins.blocks <= self.pins.limit


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("seed", range(200))
def test_explain_tells_the_longest_known_prefix_and_how_a_known_sequence_goes_on_from_it(seed: int):
    random = Random(seed)
    cache = Cache(blocks=512)
    known: list[list[int]] = []
    for _ in range(random.randint(0, 12)):
        beginning = random.choice(known)[: random.randrange(60)] if known else []
        known.append([*beginning, *(random.randrange(3) for _ in range(random.randint(1, 50)))])
        cache.put(known[-1])
    for _ in range(20):
        beginning = random.choice(known)[: random.randrange(70)] if known else []
        prompt = [*beginning, *(random.randrange(3) for _ in range(random.randint(1, 20)))]
        before = [(node.tick, node.hits, node.pins) for node in cache.tree.nodes()]
        report = explain(cache.tree, PLAIN, prompt, limit=24)
        assert report.cached == max((common(prompt, other) for other in known), default=0)
        shown = [*prompt[: report.cached], *report.continuation]
        if report.cached < len(prompt):
            goes_on = any(common(prompt, other) == report.cached < len(other) for other in known)
            assert bool(report.continuation) == goes_on
            assert not report.continuation or report.continuation[0] != prompt[report.cached]
            assert any(other[: len(shown)] == shown for other in known) or not known
        else:
            assert not report.continuation
        assert len(report.continuation) <= 24
        assert [(node.tick, node.hits, node.pins) for node in cache.tree.nodes()] == before


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_evicted_what_is_pinned_stays_until_its_last_pin_is_gone(seed: int):
    random = Random(seed)
    cache = Cache(blocks=random.choice((8, 20, 64)), limit=random.choice((0, 3, 8)))
    sources = [[random.randrange(3) for _ in range(random.randint(1, 120))] for _ in range(4)]
    pinned: dict[tuple[int, ...], int] = {}
    for _ in range(80):
        tokens = random.choice(sources)[: random.randint(1, 120)]
        match random.choice(("put", "put", "pin", "pin", "unpin", "evict")):
            case "put":
                cache.put(tokens)
            case "pin":
                key = tuple(tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS])
                cached = cache.found(key) // BLOCK_TOKENS * BLOCK_TOKENS
                before = cache.pins.blocks
                try:
                    assert cache.pins.pin(PLAIN, tokens) == cached
                    if cached:
                        pinned[key] = cached
                except RequestError as error:
                    assert (error.status, error.code) == (409, "pin_limit_reached")
                    assert cache.pins.blocks == before
            case "unpin":
                key = tuple(tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS])
                key = random.choice([key, *pinned])
                assert cache.pins.unpin(PLAIN, key) == (pinned.pop(key, None) is not None)
            case "evict":
                cache.evict_all()
        cache.check()
        assert len(cache.pins) == len(pinned)
        covered = {key[:end] for key, length in pinned.items() for end in range(16, length + 1, 16)}
        assert cache.pins.blocks == len(covered)
        for key, length in pinned.items():
            assert cache.found(key) >= length
    for key in pinned:
        assert cache.pins.unpin(PLAIN, key)
    cache.evict_all()
    assert cache.pool.free == cache.pool.total


def test_a_pin_made_before_all_was_cached_grows_when_it_is_made_again():
    cache = Cache()
    prompt = list(range(64))
    cache.put(prompt[:20])
    assert cache.pins.pin(PLAIN, prompt) == 16
    cache.put(prompt)
    assert cache.pins.pin(PLAIN, prompt) == 64
    assert (len(cache.pins), cache.pins.blocks) == (1, 4)


def test_beyond_the_limit_a_pin_is_refused_with_figures():
    cache = Cache(limit=3)
    cache.put(range(32))
    cache.put(range(100, 148))
    cache.pins.pin(PLAIN, range(32))
    with pytest.raises(RequestError, match="takes 3 more blocks of 16 tokens; 2 are pinned and at most 3"):
        cache.pins.pin(PLAIN, range(100, 148))


def test_the_hottest_prefix_is_the_one_that_saved_most_tokens():
    engine = make_engine()
    system, other = list(range(40)), list(range(100, 120))
    for number in range(6):
        engine.add(request(f"s{number}", [*system, 200 + number, 3]))
        run(engine)
    for number in range(4):
        engine.add(request(f"o{number}", [*other, 200 + number, 3]))
        run(engine)
    first, second, *_ = hot(engine.cache.tree, PLAIN, 10)
    assert (first.tokens, first.hits, first.blocks) == (tuple(system[:32]), 5, 2)
    assert (second.tokens, second.hits, second.blocks) == (tuple(other[:16]), 3, 1)
    assert second.last_use > first.last_use and not first.pinned


def test_hits_of_what_was_evicted_below_still_count_for_what_is_above():
    engine = make_engine(max_pinned_blocks=2)
    prompt = list(range(80))
    for number in range(3):
        engine.add(request(f"r{number}", prompt))
        run(engine)
    engine.cache.pins.pin(PLAIN, prompt[:32])
    while engine.cache.tree.evict():
        pass
    assert [(len(item.tokens), item.hits, item.pinned) for item in hot(engine.cache.tree, PLAIN, 9)] == [
        (32, 2, True)
    ]


def test_a_pinned_prefix_is_listed_however_cold_it_is():
    cache = Cache()
    cache.put(range(40))
    cache.put(range(100, 180))
    cache.pins.pin(PLAIN, range(40))
    assert [item.pinned for item in hot(cache.tree, PLAIN, 1)].count(True) == 1


def test_a_request_too_long_for_what_pins_leave_is_refused_at_once():
    engine = make_engine(blocks=10, max_pinned_blocks=4)
    assert engine.longest_request == 6 * BLOCK_TOKENS + 1
