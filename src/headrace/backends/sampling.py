"""How a row's next token is chosen: the parameters of a request, and their wire form in a step plan.

The order of operations, on a row's logits:

1. The request's logit biases are added. One of minus infinity forbids a token: so do stop tokens come none
   before `min_tokens`.
2. Repetition, then presence, then frequency penalty.
3. Tokens that the mask forbids become impossible, whatever was added to them.
4. The largest logit is taken, or: temperature, top_k, min_p, top_p, and a draw from what is left.

Log-probabilities that are reported are of the logits before all that.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

SamplingRecords = NDArray[np.void]
"""Structured array of `SAMPLING_DTYPE`, one element for each yielding row."""

# Mirrored field for field by `struct SamplingRecord` in native/sampler.h; the native module checks the size.
SAMPLING_DTYPE = np.dtype(
    [
        ("seed", np.uint64),
        ("prompt_index", np.uint32),
        ("choice_index", np.uint32),
        ("position", np.uint32),
        ("top_k", np.int32),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
    ],
    align=True,
)


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Parameters of one request. Applied in the order they are listed, after the biases.

    Noise is a counter-based generator keyed by (seed, prompt_index, choice_index, position), so a token
    depends on nothing but its own request (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
    """

    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (CTRL, Keskar et al.)."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token already in the output."""
    frequency_penalty: float = 0.0
    """Subtracted for every occurrence of the token in the output."""
    temperature: float = 1.0
    """0 is greedy: the largest logit, the lowest token id among equals."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the most likely one (Nguyen et al.)."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose share of what is left reaches p (Holtzman et al.)."""
    seed: int = 0
    """64-bit."""
    prompt_index: int = 0
    choice_index: int = 0

    @property
    def uses_history(self) -> bool:
        """Whether the sampler needs the tokens seen so far."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def record(self) -> SamplingRecords:
        """The wire form, shape [1], its `position` left at 0 for the scheduler to fill in each step."""
        out = np.zeros(1, SAMPLING_DTYPE)
        for name in self.__struct_fields__:
            out[name] = getattr(self, name)
        return out
