"""Which words, pairs of words and short runs of letters a prompt holds, as weighted buckets of a fixed table.

Grams are hashed into buckets (feature hashing, Weinberger et al., 2009, arXiv:0902.2206) and weighted by the
logarithm of their count times the rarity of their bucket among the prompts learnt from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.routing.cues import Scanned

Floats = NDArray[np.float64]

_BITS = 14
BUCKETS = 1 << _BITS
LONGEST_RUN = 4
"""Letters of the longest run counted."""

_SPREAD = np.uint64(0xD6E8FEB86659FD93)
_MULTIPLIER = np.uint32(0x01000193)


@dataclass(frozen=True)
class Bag:
    """The buckets a prompt fills, ascending, and for each one plus the logarithm of how often it does."""

    buckets: NDArray[np.intp]
    counts: Floats


def word_bag(text: Scanned) -> Bag:
    """Words and pairs of neighbouring words."""
    words = text.word_hashes * _SPREAD
    pairs = (words[:-1] ^ (words[1:] >> np.uint64(7))) * _SPREAD
    return _bag(np.concatenate((words, pairs)) >> np.uint64(64 - _BITS))


def letter_bag(text: Scanned) -> Bag:
    """Runs of one to four bytes, in lower case."""
    letters = text.folded.astype(np.uint32) + np.uint32(1)
    hashed = letters * np.uint32(0x9E3779B1)
    parts = [hashed]
    for length in range(2, LONGEST_RUN + 1):
        if len(letters) < length:
            break
        hashed = (hashed[:-1] ^ letters[length - 1 :]) * np.uint32(0x85EBCA6B)
        hashed = hashed ^ (hashed >> np.uint32(15))
        parts.append(hashed)
    return _bag((np.concatenate(parts) * _MULTIPLIER) >> np.uint32(32 - _BITS))


def _bag(buckets: NDArray[np.unsignedinteger]) -> Bag:
    counts = np.bincount(buckets.astype(np.intp), minlength=BUCKETS)
    filled = np.flatnonzero(counts > 0)
    return Bag(filled, 1 + np.log(counts[filled]))


def rarity(bags: Sequence[Bag]) -> Floats:
    """For each bucket, one plus the logarithm of how few of the bags fill it, shape (BUCKETS,)."""
    filled = np.zeros(BUCKETS)
    for bag in bags:
        filled[bag.buckets] += 1
    return 1 + np.log((1 + len(bags)) / (1 + filled))


def weighted(bag: Bag, rare: Floats) -> Floats:
    """The weights of a bag's buckets, their squares summing to one."""
    weights = bag.counts * rare[bag.buckets]
    length = float(np.sqrt((weights**2).sum()))
    return weights / length if length else weights
