"""Key-value blocks for sequences: taken from the free ones, shared with the prefix tree, given back to it."""

from __future__ import annotations

from headrace.backends.cache import BLOCK_TOKENS
from headrace.backends.step import BlockCopy
from headrace.engine.block_pool import BlockPool
from headrace.engine.pins import Pins
from headrace.engine.prefix_tree import Match, Node, PrefixTree
from headrace.engine.sequence import Sequence, blocks_for


class KVCache:
    """One pool for each cache group, and the prefix tree over them.

    A sequence's leading full blocks are nodes of the tree; the blocks after them are its own. A sequence
    with `use_prefix_cache=False` has only its own.
    """

    def __init__(self, groups: int, blocks: int, max_pinned: int = 0):
        """`max_pinned` is how many of the blocks pins may hold."""
        self.pools = tuple(BlockPool(blocks) for _ in range(groups))
        self.tree = PrefixTree(self.pools)
        self.pins = Pins(self.tree, max_pinned)
        self.blocks = blocks
        self.releases = 0
        """Counts the occasions on which blocks became available."""

    @property
    def available(self) -> int:
        """Blocks that can be had in every group: free ones, and idle ones of the tree.

        An idle block has only idle ones below it (a sequence holds its whole path), so all can be evicted.
        """
        return min(pool.free + pool.idle for pool in self.pools)

    def match(self, seq: Sequence) -> Match:
        """What the tree holds of the sequence; at least its last token is left to compute."""
        if not seq.request.use_prefix_cache:
            return Match()
        return self.tree.match(seq.request.namespace, seq.tokens, len(seq.tokens) - 1)

    def start(self, seq: Sequence, match: Match) -> None:
        """Give the sequence a locked match and blocks for the rest of its tokens, which must be available.

        The match's tail is copied into the first of its own blocks by the step that comes next.
        """
        for node in match.path:
            for table, block in zip(seq.tables, node.blocks, strict=True):
                table.append(block)
        seq.node = match.path[-1] if match.path else None
        if seq.node is not None and seq.cached_tokens is None:
            seq.node.hits += 1  # a request counts once, however often it is preempted
        seq.tree_blocks = len(match.path)
        self.grow(seq, len(seq.tokens))
        if match.tail:
            seq.copy_from = match
            seq.copies = tuple(
                BlockCopy(group, source, table[seq.tree_blocks], match.tail_tokens)
                for group, (source, table) in enumerate(zip(match.tail_blocks, seq.tables, strict=True))
            )
        seq.computed = match.length
        seq.prefill_end = len(seq.tokens)

    def grow(self, seq: Sequence, tokens: int) -> None:
        """Add blocks until the sequence can hold this many tokens; they must be available."""
        for _ in range(blocks_for(tokens) - len(seq.tables[0])):
            for pool, table in zip(self.pools, seq.tables, strict=True):
                while not pool.free:
                    evicted = self.tree.evict()
                    assert evicted, "blocks were taken that were not available"
                table.append(pool.allocate())

    def grow_if_available(self, seq: Sequence, tokens: int) -> int:
        """Grow towards so many tokens with the blocks that are available; returns how many it can hold."""
        lacking = blocks_for(tokens) - len(seq.tables[0])
        if lacking > 0:
            self.grow(seq, seq.capacity + min(lacking, self.available) * BLOCK_TOKENS)
        return min(tokens, seq.capacity)

    def shrink(self, seq: Sequence) -> None:
        """Free the blocks past the tokens computed, which were taken for drafted ones."""
        blocks = blocks_for(seq.computed)
        for pool, table in zip(self.pools, seq.tables, strict=True):
            for block in table.view()[blocks:].tolist():
                pool.release(block)
            table.truncate(blocks)

    def copied(self, seq: Sequence) -> None:
        """The sequence's copies are in a step plan: their source need not be kept any longer.

        No block is allocated before that step is collected, so the source stays unchanged until then.
        """
        self.tree.unlock_tail(seq.copy_from)
        seq.copies, seq.copy_from = (), Match()

    def commit(self, seq: Sequence, *, partial: bool) -> None:
        """Enter computed tokens into the tree: full blocks, and the begun one too if `partial`.

        The sequence goes on filling a begun block after its entry; the tree claims only the tokens entered.
        Where another sequence entered the same full block before, the duplicate is given back.
        """
        if not seq.request.use_prefix_cache:
            return
        whole = seq.request.cache_output
        shared = seq.computed if whole else min(seq.computed, seq.prompt_length)
        while (seq.tree_blocks + 1) * BLOCK_TOKENS <= shared:
            node = self._insert(seq, BLOCK_TOKENS)
            for pool, table, block in zip(self.pools, seq.tables, node.blocks, strict=True):
                own = table[seq.tree_blocks]
                if block != own:
                    pool.retain(block)
                    pool.release(own)
                    table[seq.tree_blocks] = block
                    self.releases += 1
            seq.node = node
            seq.tree_blocks += 1
        if partial and whole and seq.computed % BLOCK_TOKENS:
            self._insert(seq, seq.computed % BLOCK_TOKENS)

    def release(self, seq: Sequence) -> None:
        """Take every block from the sequence, leaving what it has computed to the tree."""
        assert not seq.copies, "a sequence was released between its start and its step"
        self.commit(seq, partial=False)
        begun = seq.computed % BLOCK_TOKENS
        if begun and seq.request.use_prefix_cache and seq.request.cache_output:
            leaf = self._insert(seq, begun)
            if leaf.blocks == self._next_blocks(seq):
                seq.node = leaf
                seq.tree_blocks += 1
        for pool, table in zip(self.pools, seq.tables, strict=True):
            for block in table.view()[seq.tree_blocks :].tolist():
                pool.release(block)
            table.truncate(0)
        self.tree.unlock(seq.node)
        seq.node, seq.tree_blocks, seq.computed = None, 0, 0
        self.releases += 1

    def _insert(self, seq: Sequence, tokens: int) -> Node:
        """Insert the first tokens of the sequence's first block that is not in the tree."""
        start = seq.tree_blocks * BLOCK_TOKENS
        key = tuple(seq.tokens[start : start + tokens])
        return self.tree.insert(seq.request.namespace, seq.node, key, self._next_blocks(seq))

    @staticmethod
    def _next_blocks(seq: Sequence) -> tuple[int, ...]:
        """The sequence's first block that is not in the tree, in each group."""
        return tuple(table[seq.tree_blocks] for table in seq.tables)
