"""How tokens are chosen where a request does not say: as the model's maker recommends, or OpenAI does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ModelFileError

_KEY = "general.sampling.{}"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values that a request's own replace one by one; unless given, OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    repetition_penalty: float = 1.0

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> SamplingDefaults:
        """What a GGUF file recommends under `general.sampling.*`.

        Raises ModelFileError, naming the key, for a value that makes no sense.
        """
        usual = cls()
        return cls(
            temperature=_number(metadata, "temp", usual.temperature, 0.0, math.inf),
            top_p=_number(metadata, "top_p", usual.top_p, 1e-6, 1.0),
            # As in requests, -1 keeps all too.
            top_k=max(0, int(_number(metadata, "top_k", usual.top_k, -1, 2**31 - 1))),
            repetition_penalty=_number(metadata, "penalty_repeat", usual.repetition_penalty, 1e-6, math.inf),
        )


def _number(metadata: Mapping[str, object], name: str, usual: float, least: float, most: float) -> float:
    key = _KEY.format(name)
    value = metadata.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelFileError(f"{key}: expected a number, found {type(value).__name__}")
    if not least <= value <= most or math.isinf(value):
        raise ModelFileError(f"{key}: {value} is out of range")
    # Files hold float32: 0.7 is read as 0.69999998…, and the maker wrote 0.7.
    return float(f"{value:.6g}")
