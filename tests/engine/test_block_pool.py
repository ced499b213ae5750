"""Who holds a block, who keeps it, and when it is free."""

from __future__ import annotations

import pytest

from headrace.engine.block_pool import BlockPool


def counts(pool: BlockPool) -> tuple[int, int, int]:
    pool.check_integrity()
    return pool.free, pool.used, pool.idle


def test_a_block_is_free_again_when_its_last_holder_releases_it():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.retain(block)
    pool.release(block)
    assert counts(pool) == (1, 1, 0)
    pool.release(block)
    assert counts(pool) == (2, 0, 0)


def test_a_block_that_the_tree_keeps_becomes_idle_instead_and_can_be_held_again():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.keep(block)
    assert counts(pool) == (1, 1, 0)
    pool.release(block)
    assert counts(pool) == (1, 0, 1)
    pool.retain(block)
    assert counts(pool) == (1, 1, 0)


def test_a_block_that_the_tree_drops_is_free_unless_held():
    pool = BlockPool(2)
    held, idle = pool.allocate(), pool.allocate()
    pool.keep(held)
    pool.keep(idle)
    pool.release(idle)
    pool.drop(held)
    pool.drop(idle)
    assert counts(pool) == (1, 1, 0)


def test_misuse_is_noticed():
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(0)
    with pytest.raises(AssertionError, match="a free block"):
        pool.retain(0)
