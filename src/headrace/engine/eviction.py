"""Which leaf of the prefix tree is given up first: the one that has been idle longest for its worth.

Least recently used, corrected by how many blocks the last request of a path added to the cache. On recorded
conversations a block that came with many others is less likely to be used again than one of few, and costs
its place as much; so time counts for it by the fourth root of that number. (The idea that a larger object
must earn its place is that of GreedyDual-Size: Cao and Irani, 1997.) Constant time, but for the heaps.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.engine.prefix_tree import Node

_CLASSES = 24
_HASTE = tuple(2 ** (size / 4) for size in range(_CLASSES))
"""How fast time passes for the blocks of each class."""


def size_class(added: int) -> int:
    """The class of a path whose last request added so many blocks to the tree."""
    return min(max(added, 1).bit_length(), _CLASSES) - 1


class EvictionQueue:
    """The leaves that can be evicted, and perhaps some that no longer can.

    A node used since it was queued is put back in its new place when it comes up; so uses cost nothing here
    and the queue never outgrows the tree.
    """

    def __init__(self, evictable: Callable[[Node], bool]):
        self._evictable = evictable
        self._heaps: list[list[tuple[int, int, Node]]] = [[] for _ in range(_CLASSES)]

    def offer(self, node: Node) -> None:
        """Queue a node if it can be evicted and is not queued."""
        if not node.queued and self._evictable(node):
            node.queued = True
            heappush(self._heaps[node.size_class], (node.tick, node.serial, node))

    def take(self, now: int) -> Node | None:
        """The leaf to give up first at the tick `now`; None where none can be."""
        for size in range(_CLASSES):
            self._refresh(size)
        heads = [(size, heap[0]) for size, heap in enumerate(self._heaps) if heap]
        if not heads:
            return None
        size, _ = max(heads, key=lambda head: ((now - head[1][0]) * _HASTE[head[0]], -head[1][1]))
        _, _, node = heappop(self._heaps[size])
        node.queued = False
        return node

    def queued(self) -> list[Node]:
        """All of them; for tests."""
        return [node for _, _, node in chain.from_iterable(self._heaps)]

    def _refresh(self, size: int) -> None:
        """Bring a node that can be evicted, and was not used since it was queued, to the head of a heap."""
        heap = self._heaps[size]
        while heap:
            tick, _, node = heap[0]
            if node.tick == tick and node.size_class == size and self._evictable(node):
                return
            heappop(heap)
            node.queued = False
            self.offer(node)
