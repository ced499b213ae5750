"""From the hidden states of a prompt's tokens to one vector for the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from headrace.backends.step import Float32
from headrace.errors import RequestError

Pooling = Literal["mean", "cls", "last"]
# Key `{architecture}.pooling_type` of GGUF files, numbered as llama.cpp's `enum llama_pooling_type`; files of
# models that were not made for embeddings have none.
_NUMBERED: dict[object, Pooling] = {None: "mean", 0: "mean", 1: "mean", 2: "cls", 3: "last"}


def pooling_of(metadata: Mapping[str, object]) -> Pooling | None:
    """How the model's file says that vectors are made of hidden states, None for another way."""
    return _NUMBERED.get(metadata.get(f"{metadata.get('general.architecture')}.pooling_type"))


class Pool:
    """Takes a prompt's hidden states as steps bring them; how those cut it makes no difference."""

    def __init__(self, pooling: Pooling | None):
        """Raises RequestError where vectors of this model cannot be made."""
        if pooling is None:
            raise RequestError("this model's pooling_type is not supported: no embeddings can be made")
        self._pooling = pooling
        self._total: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None = None

    def add(self, hidden: Float32) -> None:
        """[n, width] of the next n tokens."""
        for row in hidden.astype(np.float64):  # one after the other: their order is part of the sum
            if self._total is None or self._pooling == "last":
                self._total = row
            elif self._pooling == "mean":
                self._total = self._total + row

    def vector(self) -> list[float]:
        """[width], of length 1: so the mean is the sum."""
        assert self._total is not None, "a prompt has a token"
        norm = float(np.sqrt(np.square(self._total).sum()))
        return [float(x) for x in (self._total / (norm or 1.0)).astype(np.float32)]
