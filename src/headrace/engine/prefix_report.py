"""What can be told of a prefix tree without changing it: where a prompt leaves it, and what is used most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.engine.prefix_tree import Node, PrefixTree, Tokens
from headrace.engine.request import PrefixNamespace


class Explanation(NamedTuple):
    """How far a prompt is cached, and what the cache has where the prompt goes another way."""

    cached: int
    """Leading tokens that the tree holds; all of them, perhaps, though a request computes its last one."""
    continuation: Tokens
    """What follows those tokens in the nearest cached sequence instead of the prompt's next one.

    Empty where nothing follows: the prompt goes on from the end of a cached one, or is all cached.
    """


class CachedPrefix(NamedTuple):
    """A token sequence that the cache holds from the first token on."""

    tokens: Tokens
    blocks: int
    """In each cache group."""
    hits: int
    """Requests that began with all of its full blocks taken from the cache."""
    last_use: int
    """Grows with every use of anything in the cache: the larger, the later."""
    pinned: bool


def explain(
    tree: PrefixTree, namespace: PrefixNamespace, tokens: Sequence[int], limit: int = 32
) -> Explanation:
    """Where the tokens leave the tree, with at most `limit` tokens of what it has from there on."""
    match = tree.match(namespace, tokens, len(tokens))
    if match.length == len(tokens):
        return Explanation(match.length, ())
    following: list[int] = []
    node = match.path[-1] if match.path else tree.root(namespace)
    if match.tail is not None:
        node = match.tail
        following += node.tokens[match.tail_tokens :]
    while len(following) < limit and node is not None and node.children:
        node = max(node.children.values(), key=lambda child: child.tick)
        following += node.tokens
    return Explanation(match.length, tuple(following[:limit]))


def hot(tree: PrefixTree, namespace: PrefixNamespace, limit: int) -> list[CachedPrefix]:
    """The prefixes that saved most tokens, at most `limit`, and those that are pinned.

    Of prefixes that begin one another and are hit equally often only the longest is listed. Takes time in
    proportion to the namespace's nodes.
    """
    root = tree.root(namespace)
    if root is None:
        return []
    nodes = list(tree.nodes(root))
    lengths = _lengths(nodes)
    hits = _total_hits(nodes)
    ends = [node for node in nodes if node is not root and _is_end(node, hits)]
    ends.sort(key=lambda node: (-hits[node] * lengths[node], -node.tick))
    chosen = [node for rank, node in enumerate(ends) if rank < limit or _pin_ends(node)]
    return [
        CachedPrefix(_path_tokens(node), _depth(node), hits[node], node.tick, node.pins > 0)
        for node in chosen
    ]


def _lengths(nodes: list[Node]) -> dict[Node, int]:
    """Tokens down to each node; `nodes` has parents before children."""
    lengths: dict[Node, int] = {}
    for node in nodes:
        above = lengths[node.parent] if node.parent is not None else 0
        lengths[node] = above + len(node.tokens)
    return lengths


def _total_hits(nodes: list[Node]) -> dict[Node, int]:
    """Requests that took each node, be it on the way to one below; `nodes` has parents before children."""
    totals = {node: node.hits for node in nodes}
    for node in reversed(nodes):
        if node.parent is not None:
            totals[node.parent] += totals[node]
    return totals


def _is_end(node: Node, hits: dict[Node, int]) -> bool:
    return _pin_ends(node) or all(hits[child] < hits[node] for child in node.children.values())


def _pin_ends(node: Node) -> bool:
    return node.pins > sum(child.pins for child in node.children.values())


def _path_tokens(node: Node) -> Tokens:
    pieces: list[Tokens] = []
    above: Node | None = node
    while above is not None:
        pieces.append(above.tokens)
        above = above.parent
    return tuple(token for piece in reversed(pieces) for token in piece)


def _depth(node: Node) -> int:
    depth, above = 0, node.parent
    while above is not None:
        depth, above = depth + 1, above.parent
    return depth
