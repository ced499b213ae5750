"""Digests of blocks, and the events from which others keep a picture of the tree."""

from __future__ import annotations

from random import Random

from engine.helpers import make_engine, request, run
from headrace.engine.block_digest import DIGEST_BYTES, block_digest, chain, root_digest
from headrace.engine.block_pool import BlockPool
from headrace.engine.cache_events import CacheEvents
from headrace.engine.prefix_tree import Match, Node, PrefixTree
from headrace.engine.request import PrefixNamespace

MODEL = PrefixNamespace("model")


def test_a_chain_has_one_digest_for_each_full_block_and_depends_on_all_before():
    tokens = list(range(40))
    root = root_digest(MODEL)
    first, second = chain(root, tokens)
    assert first == block_digest(root, tokens[:16]) and second == block_digest(first, tokens[16:32])
    assert len(first) == DIGEST_BYTES
    changed = [99, *tokens[1:]]
    assert not {first, second} & {*chain(root, changed)}
    assert [*chain(root, [*tokens[:32], *range(500, 516)])][:2] == [first, second]
    assert not [*chain(root, tokens[:15])]


def test_no_two_namespaces_have_the_same_root():
    namespaces = [
        PrefixNamespace("ab"),
        PrefixNamespace("a", adapter="b"),
        PrefixNamespace("a", salt="b"),
        PrefixNamespace("a", media="b"),
        PrefixNamespace("a", adapter="b", salt=""),
    ]
    assert len({root_digest(namespace) for namespace in namespaces}) == len(set(namespaces))


def full_digests(tree: PrefixTree) -> set[bytes]:
    return {node.digest for node in tree.nodes() if len(node.tokens) == 16}


def replayed(known: set[bytes], events: CacheEvents) -> set[bytes]:
    stored, evicted = set(events.stored), set(events.evicted)
    assert len(stored) == len(events.stored) and len(evicted) == len(events.evicted)
    assert not stored & known and evicted <= known and not stored & evicted
    return (known | stored) - evicted


def test_replaying_the_events_gives_exactly_the_full_blocks_of_the_tree():
    for seed in range(200):
        random = Random(seed)
        pool = BlockPool(24)
        tree = PrefixTree([pool])
        known: set[bytes] = set()
        asked = False
        for _ in range(60):
            letters = random.choice((2, 50))
            tokens = [random.randrange(letters) for _ in range(random.randrange(1, 120))]
            put(tree, pool, tokens)
            if random.random() < 0.2:
                tree.evict()
            if random.random() < 0.4:
                anew = asked and random.random() < 0.1
                known = replayed(set() if anew else known, tree.take_events(anew=anew))
                asked = True
                assert known == full_digests(tree)
            tree.check_integrity()


def put(tree: PrefixTree, pool: BlockPool, tokens: list[int]) -> None:
    match = tree.match(MODEL, tokens, len(tokens))
    tree.lock(Match(match.path))
    node: Node | None = match.path[-1] if match.path else None
    for start in range(len(match.path) * 16, len(tokens), 16):
        while not pool.free:
            assert tree.evict()
        block = pool.allocate()
        found = tree.insert(MODEL, node, tuple(tokens[start : start + 16]), (block,))
        if found.blocks != (block,):
            pool.release(block)
            break
        node = found
    tree.unlock(node)


def test_an_engine_tells_the_blocks_of_a_prompt_by_the_digests_that_others_compute():
    engine = make_engine()
    tokens = list(range(100))
    engine.add(request("a", tokens, 2))
    run(engine)
    assert engine.take_cache_events() == CacheEvents([*chain(root_digest(MODEL), tokens)], [])
    assert engine.take_cache_events() == CacheEvents([], [])
