"""Pins: prefixes that the cache does not give up, however long nobody uses them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.prefix_tree import Match, Node, PrefixTree, Tokens
from headrace.engine.request import PrefixNamespace
from headrace.errors import RequestError

_Key = tuple[PrefixNamespace, Tokens]


class Pins:
    """The pinned prefixes of one tree.

    A pin holds a reference to every full block of its prefix, as a sequence does. Only full blocks: one begun
    may be replaced by a longer one at any time, and what it saves is less than a block.
    """

    def __init__(self, tree: PrefixTree, limit: int):
        self._tree = tree
        self._nodes: dict[_Key, Node] = {}
        self.limit = limit
        """The most blocks, of each cache group, that may be pinned."""
        self.blocks = 0
        """How many are; a block in several pins counts once."""

    def __len__(self) -> int:
        return len(self._nodes)

    def pin(self, namespace: PrefixNamespace, tokens: Sequence[int]) -> int:
        """Pin what is cached of the tokens, and return how many those are: whole blocks.

        To pin the same tokens once more pins what has been cached of them since.
        Raises RequestError, and changes nothing, where more blocks would be pinned than may be.
        """
        key = _key(namespace, tokens)
        path = self._tree.match(namespace, key[1], len(key[1])).path
        added = sum(not node.pins for node in path)
        if self.blocks + added > self.limit:
            raise RequestError(
                f"Pinning these tokens takes {added} more blocks of {BLOCK_TOKENS} tokens; {self.blocks} are "
                f"pinned and at most {self.limit} may be. Unpin others, or start the server with a larger "
                "cache or a smaller context.",
                status=409,
                code="pin_limit_reached",
            )
        if path:
            self._tree.lock(Match(path))
            self.blocks += added
            for node in path:
                node.pins += 1
            self.unpin(namespace, tokens)
            self._nodes[key] = path[-1]
        return len(path) * BLOCK_TOKENS

    def clear(self) -> None:
        """Let everything be evicted again."""
        for namespace, tokens in list(self._nodes):
            self.unpin(namespace, tokens)

    def unpin(self, namespace: PrefixNamespace, tokens: Sequence[int]) -> bool:
        """Let the tokens be evicted again, as far as no other pin has them; False where they were no pin."""
        node = self._nodes.pop(_key(namespace, tokens), None)
        if node is None:
            return False
        above: Node | None = node
        while above is not None and above.parent is not None:
            above.pins -= 1
            self.blocks -= not above.pins
            above = above.parent
        self._tree.unlock(node)
        return True


def _key(namespace: PrefixNamespace, tokens: Sequence[int]) -> _Key:
    return namespace, tuple(tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS])
