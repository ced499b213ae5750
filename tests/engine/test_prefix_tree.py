"""The tree alone: what it finds, what takes whose place, and what it gives up first."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.block_pool import BlockPool
from headrace.engine.prefix_tree import Match, Node, PrefixTree
from headrace.engine.request import PrefixNamespace

MODEL = PrefixNamespace("model")


class Trees:
    """A tree, and a way to put a whole token sequence into it as an ended request would."""

    def __init__(self, blocks: int = 32):
        self.pool = BlockPool(blocks)
        self.tree = PrefixTree([self.pool])

    def put(self, tokens: Sequence[int], namespace: PrefixNamespace = MODEL) -> None:
        match = self.tree.match(namespace, tokens, len(tokens))
        self.tree.lock(Match(match.path))
        node: Node | None = match.path[-1] if match.path else None
        for start in range(len(match.path) * 16, len(tokens), 16):
            block = self.pool.allocate()
            found = self.tree.insert(namespace, node, tuple(tokens[start : start + 16]), (block,))
            if found.blocks != (block,):
                self.pool.release(block)
                break
            node = found
        self.tree.unlock(node)
        self.tree.check_integrity()
        self.pool.check_integrity()

    def found(self, tokens: Sequence[int], namespace: PrefixNamespace = MODEL) -> int:
        return self.tree.match(namespace, tokens, len(tokens)).length


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_the_longest_common_prefix_is_found_token_by_token():
    trees = Trees()
    tokens = list(range(40))
    trees.put(tokens)
    for length in range(41):
        assert trees.found([*tokens[:length], 999, 998]) == length


def test_a_match_keeps_to_its_limit_even_where_more_is_known():
    trees = Trees()
    trees.put(range(48))
    match = trees.tree.match(MODEL, list(range(48)), 47)
    assert (len(match.path), match.tail_tokens, match.length) == (2, 15, 47)


def test_the_child_that_shares_most_is_found_among_many():
    trees = Trees()
    for word in ("apple", "apply", "apt", "banana", "band", "bandit", "zebra"):
        trees.put(letters(word))
    for query, shared in (("applet", 5), ("appliance", 4), ("apx", 2), ("bandage", 4), ("c", 0), ("zz", 1)):
        assert trees.found(letters(query)) == shared


def test_equal_tokens_in_another_context_are_not_the_same():
    trees = Trees()
    trees.put([*range(16), *([7] * 16)])
    assert trees.found([*range(1, 17), *([7] * 16)]) == 0
    assert trees.found([7] * 16) == 0


def test_namespaces_share_nothing():
    trees = Trees()
    trees.put(range(32))
    for other in (
        PrefixNamespace("other"),
        PrefixNamespace("model", adapter="a"),
        PrefixNamespace("model", salt="s"),
        PrefixNamespace("model", media="m"),
    ):
        assert trees.found(range(32), other) == 0
        trees.put(range(16), other)
    assert trees.found(range(32)) == 32


def test_a_longer_block_takes_the_place_of_its_beginning_and_frees_that_block():
    trees = Trees()
    trees.put(range(5))
    trees.put(range(9))
    assert (trees.found(range(9)), trees.pool.idle) == (9, 1)
    trees.put(range(20))
    assert (trees.found(range(20)), trees.pool.idle) == (20, 2)


def test_the_beginning_of_a_known_block_adds_nothing():
    trees = Trees()
    trees.put(range(9))
    trees.put(range(4))
    assert trees.pool.idle == 1


def test_the_least_recently_used_leaf_goes_first_and_children_before_parents():
    trees = Trees()
    trees.put(range(32))
    trees.put([*range(16), 500])
    trees.put([600])
    trees.put(range(32))  # used again
    order = []
    known = {"second": [*range(16), 500], "third": [600], "first": range(32)}
    while trees.tree.evict():
        trees.tree.check_integrity()
        gone = [name for name, tokens in known.items() if trees.found(tokens) < len(tokens)]
        order += [name for name in gone if name not in order]
    assert order == ["second", "third", "first"]
    assert trees.pool.free == trees.pool.total


def test_a_parent_that_becomes_a_leaf_is_as_recent_as_its_own_last_use():
    trees = Trees()
    trees.put(range(32))
    trees.put([700])
    trees.put(range(16))  # the parent alone
    assert trees.tree.evict() and trees.found(range(32)) == 16
    assert trees.tree.evict() and trees.found([700]) == 0
    assert trees.tree.evict() and trees.found(range(16)) == 0


def test_what_a_sequence_holds_is_not_evicted():
    trees = Trees()
    trees.put(range(40))
    match = trees.tree.match(MODEL, range(20), 20)
    trees.tree.lock(match)
    while trees.tree.evict():
        pass
    assert trees.found(range(40)) == 32  # the block that is held, and the one to copy from
    match = trees.tree.unlock_tail(match)
    while trees.tree.evict():
        pass
    assert trees.found(range(40)) == 16
    trees.tree.unlock(match.path[-1])
    while trees.tree.evict():
        pass
    assert trees.found(range(40)) == 0


def test_an_emptied_namespace_leaves_nothing_behind():
    trees = Trees()
    trees.put(range(20), PrefixNamespace("model", salt="once"))
    while trees.tree.evict():
        pass
    assert not list(trees.tree.nodes())


def test_blocks_that_came_with_many_go_before_somewhat_older_ones_that_came_with_few():
    trees = Trees(64)
    trees.put([700] * 16)
    trees.put(range(32 * 16))
    for _ in range(100):  # time passes
        trees.put([800] * 16)
    for _ in range(32):
        assert trees.tree.evict()
    assert trees.found([700] * 16) == 16 and trees.found(range(32 * 16)) == 0


def test_a_path_that_was_used_again_stays_as_long_as_what_that_use_added_is_worth():
    trees = Trees(64)
    trees.put([700] * 16)
    trees.put(range(32 * 16))
    trees.put([*range(32 * 16), 1])
    for _ in range(100):
        trees.put([800] * 16)
    assert trees.tree.evict()
    assert trees.found([700] * 16) == 0 and trees.found([*range(32 * 16), 1]) == 32 * 16 + 1
