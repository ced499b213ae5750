"""The blocks of one cache group: which are free, who holds each, which the prefix tree keeps."""

from __future__ import annotations


class BlockPool:
    """A fixed number of blocks, named 0 … total - 1. Every operation takes constant time.

    A block is held by any number of sequences (its references) and kept at most once by the prefix tree.
    It is free when neither wants it. One that only the tree keeps is idle: its content is valid and the
    tree may give it up at any time.
    """

    __slots__ = ("_free", "_kept", "_references", "idle", "total")

    def __init__(self, total: int):
        self.total = total
        self.idle = 0
        """Blocks that the tree keeps and no sequence holds."""
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._kept = bytearray(total)

    @property
    def free(self) -> int:
        """Blocks that nobody wants."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that a sequence holds."""
        return self.total - len(self._free) - self.idle

    def references(self, block: int) -> int:
        """How many sequences hold the block."""
        return self._references[block]

    def kept(self, block: int) -> bool:
        """Whether the prefix tree keeps the block."""
        return bool(self._kept[block])

    def allocate(self) -> int:
        """A free block, with one reference. There must be one."""
        block = self._free.pop()
        self._references[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more sequence holds a block that is not free."""
        if self._references[block] == 0:
            assert self._kept[block], "a free block was retained"
            self.idle -= 1
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One sequence fewer holds the block; the last one frees it, unless the tree keeps it."""
        assert self._references[block] > 0, "a block was released more often than retained"
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._kept[block]:
                self.idle += 1
            else:
                self._free.append(block)

    def keep(self, block: int) -> None:
        """The tree takes in a block that a sequence holds."""
        assert self._references[block] > 0 and not self._kept[block], (
            "only a held block enters the tree, once"
        )
        self._kept[block] = 1

    def drop(self, block: int) -> None:
        """The tree gives the block up, which frees it unless a sequence holds it."""
        assert self._kept[block], "the tree dropped a block it did not keep"
        self._kept[block] = 0
        if self._references[block] == 0:
            self.idle -= 1
            self._free.append(block)

    def check_integrity(self) -> None:
        """Assert that the counts agree with the blocks."""
        wanted = [bool(refs or kept) for refs, kept in zip(self._references, self._kept, strict=True)]
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert not any(wanted[block] for block in self._free), "a free block is wanted"
        assert len(self._free) + sum(wanted) == self.total, "a block leaked"
        idle = sum(1 for refs, kept in zip(self._references, self._kept, strict=True) if kept and not refs)
        assert self.idle == idle, "idle blocks are miscounted"
