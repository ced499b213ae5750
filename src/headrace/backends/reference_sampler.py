"""The definition of sampling, one plain step after another, that every backend's sampler follows to the bit.

Logits and weights are float32 and every operation on them rounds to float32; sums and noise are float64; sums
run by ascending token id, so that a draw from the whole vocabulary needs no sorting. A backend's `exp` may
differ from NumPy's in the last bits of a weight.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from headrace.backends.step import Float32, Int32, UInt32

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def sample(
    logits: Float32,
    record: np.void,
    history: Int32,
    mask: UInt32 | None = None,
    biases: tuple[Int32, Float32] | None = None,
) -> int:
    """The next token for `logits`, [vocab], which stay unchanged.

    `record` is one element of SAMPLING_DTYPE; `history` holds prompt tokens as ids and output tokens as
    -1 - id; `mask` has a bit for every allowed token, at least one of them set; `biases` are distinct ids,
    and what is added to their logits.
    """
    if biases is not None:
        ids, values = biases
        logits = logits.astype(np.float32, copy=True)
        logits[ids] += values
    logits = penalize(logits, record, history)
    if mask is not None:
        logits = np.where(unpack_mask(mask, len(logits)), logits, np.float32(-np.inf))
    if record["temperature"] == 0:
        return int(np.argmax(logits))  # the lowest id among equals
    ids, weights = _candidates(logits, record)
    sums = _sums(weights)
    point = uniform(record) * sums[-1]
    chosen = next((i for i, total in enumerate(sums) if total > point), len(sums) - 1)
    return int(ids[chosen])


def penalize(logits: Float32, record: np.void, history: Int32) -> Float32:
    """A copy of `logits` after repetition, then presence, then frequency penalty.

    Repetition divides positive logits of tokens in prompt or output and multiplies the others; presence is
    subtracted once for a token in the output, frequency times the token's count there.
    """
    logits = logits.astype(np.float32, copy=True)
    seen = np.unique(np.where(history < 0, -1 - history, history))
    found = logits[seen]
    repetition = record["repetition_penalty"]
    logits[seen] = np.where(found > 0, found / repetition, found * repetition)
    output, counts = np.unique(-1 - history[history < 0], return_counts=True)
    logits[output] = logits[output] - record["presence_penalty"]
    logits[output] = logits[output] - record["frequency_penalty"] * counts.astype(np.float32)
    return logits


def unpack_mask(mask: UInt32, vocab: int) -> NDArray[np.bool_]:
    """[vocab] whether a token is allowed; token t is bit t % 32 of word t // 32."""
    tokens = np.arange(vocab)
    allowed: NDArray[np.bool_] = (mask[tokens // 32] >> (tokens % 32).astype(np.uint32) & 1).astype(np.bool_)
    return allowed


def _candidates(logits: Float32, record: np.void) -> tuple[Int32, Float32]:
    """Token ids that may be drawn, ascending, and their weights.

    A weight is exp((logit - largest logit) / temperature), 0 below exp(-87). By descending logit and
    ascending id: of the tokens with a weight, the first `top_k` are kept; of those, weights of at least
    `min_p`; of those, the shortest prefix that reaches `top_p` of their sum.
    """
    exponents = (logits - logits.max()) / record["temperature"]
    weights = np.where(exponents < -87, np.float32(0), np.exp(np.maximum(exponents, np.float32(-87))))
    ids = np.argsort(-logits, kind="stable").astype(np.int32)
    ids = ids[weights[ids] > 0]
    if record["top_k"] > 0:
        ids = ids[: record["top_k"]]
    ids = ids[weights[ids] >= record["min_p"]]
    if record["top_p"] < 1:
        enough = float(record["top_p"]) * _sums(weights[np.sort(ids)])[-1]
        kept = next((n for n, total in enumerate(_sums(weights[ids]), start=1) if total >= enough), len(ids))
        ids = ids[:kept]
    ids = np.sort(ids)
    return ids, weights[ids]


def _sums(weights: Float32) -> list[float]:
    return list(accumulate(weights.astype(np.float64).tolist()))


def uniform(record: np.void) -> float:
    """The record's noise in [0, 1), a multiple of 2^-53."""
    seed = int(record["seed"])
    counter = (int(record["position"]), int(record["choice_index"]), int(record["prompt_index"]), 0)
    high, low, _, _ = philox4x32(counter, (seed & _WORD, seed >> 32))
    return float((high << 32 | low) >> 11) * 2.0**-53


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        left, right = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = right >> 32 ^ b ^ k0, right & _WORD, left >> 32 ^ d ^ k1, left & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return a, b, c, d


def log_softmax(logits: Float32) -> Float32:
    """Natural logarithms of the probabilities, computed in float64."""
    shifted = logits.astype(np.float64) - np.float64(logits.max())
    logprobs: Float32 = (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)
    return logprobs


def largest(logits: Float32, count: int) -> Int32:
    """The ids of the `count` largest logits, by descending logit and ascending id."""
    return np.argsort(-logits, kind="stable")[:count].astype(np.int32)
