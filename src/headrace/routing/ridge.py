"""Kernel ridge regression whose strength is the one that predicts best what is left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_STRENGTHS = (3.0, 6.0, 12.0, 24.0, 48.0, 96.0)


@dataclass(frozen=True)
class Solved:
    """For N prompts and K targets: dual weights, and what is predicted for each prompt without it, (N, K)."""

    duals: Floats
    held_out: Floats
    strength: float


@dataclass(frozen=True)
class Ridge:
    """A kernel's eigenvalues and vectors, with which every strength is tried at little cost."""

    values: Floats
    vectors: Floats

    @staticmethod
    def of(kernel: Floats) -> Ridge:
        """For a kernel among N prompts, shape (N, N)."""
        values, vectors = np.linalg.eigh(kernel)
        return Ridge(values.clip(min=0), vectors)

    def solved(self, targets: Floats) -> Solved:
        """Dual weights of the strength that predicts best what is left out; targets have shape (N, K)."""
        turned = self.vectors.T @ targets
        best = None
        for strength in _STRENGTHS:
            leverage = (self.vectors**2) @ (self.values / (self.values + strength))
            duals = self.vectors @ (turned / (self.values + strength)[:, None])
            held_out = targets - strength * duals / (1 - leverage)[:, None]
            error = float(((targets - held_out) ** 2).sum())
            if best is None or error < best[0]:
                best = error, Solved(duals, held_out, strength)
        assert best is not None
        return best[1]
