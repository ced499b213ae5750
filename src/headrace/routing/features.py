"""What is read from the prompts of a training set, and how alike any two of them are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.routing.cues import cues, scan
from headrace.routing.estimator import nearness, standardised
from headrace.routing.grams import BUCKETS, Bag, letter_bag, rarity, weighted, word_bag

Floats = NDArray[np.float64]

_BATCH = 256


@dataclass(frozen=True)
class Features:
    """Of N prompts: `support`, (N, CUES), standardised cues; the bags of words and of letters."""

    centre: NDArray[np.float32]
    scale: NDArray[np.float32]
    support: NDArray[np.float32]
    bags: tuple[list[Bag], list[Bag]]
    rarities: NDArray[np.float32]

    @staticmethod
    def of(prompts: Sequence[str]) -> Features:
        """Read from the prompts' texts; what is usual is what is usual among them."""
        texts = [scan(prompt) for prompt in prompts]
        numbers = np.array([cues(text) for text in texts])
        centre, scale = numbers.mean(axis=0), numbers.std(axis=0) + 1e-3
        bags = [word_bag(text) for text in texts], [letter_bag(text) for text in texts]
        return Features(
            centre.astype(np.float32),
            scale.astype(np.float32),
            standardised(numbers, centre.astype(np.float32), scale.astype(np.float32)),
            bags,
            np.array([rarity(each) for each in bags], np.float32),
        )

    def kernel(self) -> Floats:
        """How alike any two prompts are: by their cues, words and letters, each from 0 to 1, shape (N, N)."""
        total = nearness(self.support, self.support).astype(np.float64)
        for bags, rare in zip(self.bags, self.rarities, strict=True):
            rows = [weighted(bag, rare) for bag in bags]
            for first in range(0, len(bags), _BATCH):
                dense = np.zeros((BUCKETS, len(bags[first : first + _BATCH])), np.float32)
                for column, (bag, row) in enumerate(
                    zip(bags[first : first + _BATCH], rows[first : first + _BATCH], strict=True)
                ):
                    dense[bag.buckets, column] = row
                for index, (bag, row) in enumerate(zip(bags, rows, strict=True)):
                    total[index, first : first + _BATCH] += row.astype(np.float32) @ dense[bag.buckets]
        return total

    def folded(self, duals: Floats) -> NDArray[np.float32]:
        """The linear kernels' part as a weight of each bucket, shape (2, BUCKETS, M)."""
        folded = np.zeros((2, BUCKETS, duals.shape[1]))
        for bags, rare, table in zip(self.bags, self.rarities, folded, strict=True):
            for bag, dual in zip(bags, duals, strict=True):
                table[bag.buckets] += weighted(bag, rare)[:, None] * dual
        return folded.astype(np.float32)
