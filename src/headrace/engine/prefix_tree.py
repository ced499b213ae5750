"""The prefix tree: which token sequences the cache holds, block by block, so that none is computed twice.

One tree for each namespace. A node is one block: up to 16 tokens and the block (one in each cache group) that
holds their keys and values in the context of all nodes above it. Only a full node has children; a node of
fewer tokens is a leaf. Nodes are found by comparing tokens, never by a hash alone. No child's tokens begin
another child's: a longer block takes the place of a shorter one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.block_digest import block_digest, root_digest
from headrace.engine.block_pool import BlockPool
from headrace.engine.cache_events import CacheEvents, CacheLog
from headrace.engine.eviction import EvictionQueue, size_class
from headrace.engine.request import PrefixNamespace

Tokens = tuple[int, ...]


class Node:
    """One block of the tree, or the root of a namespace (no parent, no tokens, no blocks)."""

    __slots__ = (
        "blocks",
        "children",
        "digest",
        "fresh",
        "hits",
        "keys",
        "namespace",
        "parent",
        "pins",
        "queued",
        "serial",
        "size_class",
        "tick",
        "tokens",
    )

    def __init__(
        self,
        namespace: PrefixNamespace,
        parent: Node | None,
        tokens: Tokens,
        blocks: tuple[int, ...],
        serial: int,
    ):
        self.namespace = namespace
        self.parent = parent
        self.tokens = tokens
        self.blocks = blocks
        """One block in each cache group."""
        self.digest = b""
        """The chained digest of a full block, or of the namespace; empty while the block is begun."""
        self.serial = serial
        self.tick = 0
        """When it was last used."""
        self.fresh = True
        """Whether the sequence that computed it has not ended yet."""
        self.size_class = 0
        """By how many blocks its last sequence added to the tree; see `eviction`."""
        self.hits = 0
        """Requests that took the path down to here from the cache, and no more of what is still below."""
        self.pins = 0
        """Pins whose prefix leads through this node or ends at it."""
        self.queued = False
        """Whether it has an entry in the eviction queue."""
        self.children: dict[Tokens, Node] = {}
        self.keys: list[Tokens] = []
        """The children's tokens, sorted: those that share most with a query are its neighbours here."""


class Match(NamedTuple):
    """What the tree holds of a token sequence."""

    path: tuple[Node, ...] = ()
    """Nodes whose full blocks are shared as they are."""
    tail: Node | None = None
    """The child that goes on longest as the sequence does."""
    tail_blocks: tuple[int, ...] = ()
    """The tail's blocks at the time of the match, to copy from."""
    tail_tokens: int = 0
    """How many tokens of the tail match."""

    @property
    def length(self) -> int:
        """Tokens that need not be computed."""
        return len(self.path) * BLOCK_TOKENS + self.tail_tokens


class PrefixTree:
    """Five verbs: match, lock (and unlock), insert, evict, check_integrity.

    Beside them `take_events` tells whoever keeps a picture of the tree what has changed.
    A sequence that uses a path holds a reference to each of its blocks. A leaf that no sequence holds can be
    evicted, children before parents, in the order of `eviction`. "Recently" is a count of uses, not a time.
    """

    def __init__(self, pools: Sequence[BlockPool]):
        self._pools = tuple(pools)
        self._roots: dict[PrefixNamespace, Node] = {}
        self._ticks = count(1)
        self._serials = count()
        self._queue = EvictionQueue(self._evictable)
        self._log: CacheLog | None = None
        self.before_eviction: Callable[[Node], None] | None = None
        """Called with each node that is about to be given up; its blocks still hold their content."""

    def match(self, namespace: PrefixNamespace, tokens: Sequence[int], limit: int) -> Match:
        """The longest prefix of tokens[:limit] that the tree holds. Changes nothing.

        The match is safe to use until the next insert or evict, or while locked.
        """
        node = self._roots.get(namespace)
        if node is None:
            return Match()
        path: list[Node] = []
        start = 0
        while start + BLOCK_TOKENS <= limit:
            child = node.children.get(tuple(tokens[start : start + BLOCK_TOKENS]))
            if child is None:
                break
            path.append(child)
            node = child
            start += BLOCK_TOKENS
        tail, shared = _closest_child(node, tuple(tokens[start : min(start + BLOCK_TOKENS, limit)]))
        return Match(tuple(path), tail, tail.blocks if tail else (), shared)

    def lock(self, match: Match) -> None:
        """Add a reference to every block of the match, tail included, so that none is evicted."""
        tick = next(self._ticks)
        for node in match.path:
            self._retain(node.blocks)
            node.tick = tick
        if match.tail:
            self._retain(match.tail_blocks)
            match.tail.tick = tick

    def unlock(self, node: Node | None) -> None:
        """Release one reference to every block from `node` up to the root: a sequence has ended."""
        tick, added = next(self._ticks), 0
        above = node
        while above is not None and above.fresh and above.parent is not None:
            above.fresh = False
            added += 1
            above = above.parent
        size, above = size_class(added), node
        while above is not None and above.parent is not None:
            self._release(above.blocks)
            above.tick = tick
            above.size_class = size
            above = above.parent
        if node is not None:
            self._queue.offer(node)

    def unlock_tail(self, match: Match) -> Match:
        """Release the tail alone, once its copy is planned or given up. Returns the match without it."""
        if match.tail:
            self._release(match.tail_blocks)
            self._queue.offer(match.tail)
        return Match(match.path)

    def insert(
        self, namespace: PrefixNamespace, parent: Node | None, tokens: Tokens, blocks: tuple[int, ...]
    ) -> Node:
        """Put 1 to 16 computed tokens below `parent` (None: the root); returns the node that holds them.

        The caller holds `blocks` and the whole path above. Where the tree has these tokens already it keeps
        its own blocks, and the node returned has other blocks than those given; its tokens may go on longer.
        Where it has only a beginning of them, the longer block takes that node's place.
        """
        assert 0 < len(tokens) <= BLOCK_TOKENS
        if parent is None:
            parent = self._roots.get(namespace)
            if parent is None:
                parent = self._roots[namespace] = Node(namespace, None, (), (), next(self._serials))
                parent.digest = root_digest(namespace)
        place = bisect_left(parent.keys, tokens)
        # Keys that begin with `tokens` follow it in order; one that begins it comes right before.
        if place < len(parent.keys) and parent.keys[place][: len(tokens)] == tokens:
            node = parent.children[parent.keys[place]]
        elif place > 0 and tokens[: len(parent.keys[place - 1])] == parent.keys[place - 1]:
            node = parent.children.pop(parent.keys[place - 1])
            self._replace(node, tokens, blocks)
            self._stored(node)
            parent.keys[place - 1] = tokens
            parent.children[tokens] = node
        else:
            node = Node(namespace, parent, tokens, blocks, next(self._serials))
            for pool, block in zip(self._pools, blocks, strict=True):
                pool.keep(block)
            parent.keys.insert(place, tokens)
            parent.children[tokens] = node
            self._stored(node)
        node.tick = next(self._ticks)
        return node

    def evict(self) -> bool:
        """Give up a leaf that no sequence holds; False where there is none. Frees one block in each group."""
        node = self._queue.take(next(self._ticks))
        if node is None:
            return False
        if self.before_eviction is not None:
            self.before_eviction(node)
        self._remove(node)
        return True

    def take_events(self, *, anew: bool = False) -> CacheEvents:
        """The full blocks stored and evicted since the last call.

        The first call, and one that begins `anew`, reports all that are held as stored. Until then nothing is
        collected; from then on somebody has to go on asking.
        """
        if self._log is None or anew:
            self._log = CacheLog()
            for node in self.nodes():
                self._stored(node)
        return self._log.take()

    def check_integrity(self) -> None:
        """Assert every invariant of the tree; for tests."""
        kept: list[set[int]] = [set() for _ in self._pools]
        for root in self._roots.values():
            assert root.children, "an empty namespace was kept"
        for node in self.nodes():
            _check_children(node)
            if node.parent is None:
                continue
            assert self._roots[node.namespace] and node.parent.children[node.tokens] is node
            full = len(node.tokens) == BLOCK_TOKENS
            assert full or not node.children, "a partial block has children"
            assert node.digest == (block_digest(node.parent.digest, node.tokens) if full else b"")
            below = sum(child.pins for child in node.children.values())
            assert node.pins >= below, "a pinned path is pinned in part"
            assert node.queued or not self._evictable(node), "an evictable leaf would never be evicted"
            for pool, blocks, block, above in zip(
                self._pools, kept, node.blocks, node.parent.blocks or node.blocks, strict=True
            ):
                assert pool.kept(block) and block not in blocks, "a block is in two nodes"
                assert pool.references(above) >= pool.references(block), "a path is held in part"
                blocks.add(block)
        for pool, blocks in zip(self._pools, kept, strict=True):
            assert len(blocks) == sum(pool.kept(block) for block in range(pool.total)), "a kept block is lost"
        queued = self._queue.queued()
        assert len(set(queued)) == len(queued) and all(node.queued for node in queued)

    def root(self, namespace: PrefixNamespace) -> Node | None:
        """The node above all others of a namespace; None where it holds nothing."""
        return self._roots.get(namespace)

    def nodes(self, below: Node | None = None) -> Iterator[Node]:
        """Every node, parents before children, the roots included; or those from `below` down."""
        stack = list(self._roots.values()) if below is None else [below]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _evictable(self, node: Node) -> bool:
        if node.children or node.parent is None:
            return False
        return not any(pool.references(block) for pool, block in zip(self._pools, node.blocks, strict=True))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        del parent.keys[bisect_left(parent.keys, node.tokens)]
        parent.hits += node.hits
        if self._log is not None and node.digest:
            self._log.evicted(node.digest)
        for pool, block in zip(self._pools, node.blocks, strict=True):
            pool.drop(block)
        if parent.parent is not None:
            self._queue.offer(parent)
        elif not parent.children:
            del self._roots[parent.namespace]

    def _stored(self, node: Node) -> None:
        """Give a block that has just become full its digest, and report it."""
        if node.parent is None or len(node.tokens) < BLOCK_TOKENS:
            return
        node.digest = node.digest or block_digest(node.parent.digest, node.tokens)
        if self._log is not None:
            self._log.stored(node.digest)

    def _replace(self, node: Node, tokens: Tokens, blocks: tuple[int, ...]) -> None:
        for pool, old, new in zip(self._pools, node.blocks, blocks, strict=True):
            if old != new:
                pool.keep(new)
                pool.drop(old)
        node.tokens = tokens
        node.blocks = blocks

    def _retain(self, blocks: tuple[int, ...]) -> None:
        for pool, block in zip(self._pools, blocks, strict=True):
            pool.retain(block)

    def _release(self, blocks: tuple[int, ...]) -> None:
        for pool, block in zip(self._pools, blocks, strict=True):
            pool.release(block)


def _closest_child(node: Node, query: Tokens) -> tuple[Node | None, int]:
    """The child that shares the most leading tokens with the query, and how many."""
    place = bisect_left(node.keys, query)
    best, most = None, 0
    for key in node.keys[max(place - 1, 0) : place + 1]:
        shared = 0
        for mine, theirs in zip(query, key, strict=False):
            if mine != theirs:
                break
            shared += 1
        if shared > most:
            best, most = key, shared
    return (node.children[best], most) if best is not None else (None, 0)


def _check_children(node: Node) -> None:
    assert node.keys == sorted(node.children), "children and their order disagree"
    for key, following in zip(node.keys, node.keys[1:], strict=False):
        assert following[: len(key)] != key, "a child's tokens begin another's"
