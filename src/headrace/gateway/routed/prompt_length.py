"""How many tokens a prompt has for one model, told from its bytes and learnt from prompts that it counted."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.gateway.routed.need import BYTES_PER_TOKEN, Need
from headrace.routing.learner import recognised

_LEARNING = 0.05
"""Weight of the newest prompt in what is known of its tokens' length."""
_LEARNING_AROUND = 0.3
"""Of the newest short prompt in what is known of the tokens around all prompts; those hardly differ."""
_LONGEST_TOKEN = 16.0
_MARGIN_TOKENS = 64


class _Saved(msgspec.Struct):
    bytes_per_token: Annotated[float, Meta(gt=0, le=_LONGEST_TOKEN)]
    around: Annotated[float, Meta(ge=0, le=1e6)]


class PromptLength:
    """Of one model."""

    def __init__(self) -> None:
        self._bytes_per_token = BYTES_PER_TOKEN
        self._around = 0.0
        """Tokens that its chat template adds besides those around each message, such as a system prompt."""

    def expected(self, need: Need) -> int:
        """Tokens of the prompt without its images, as far as can be told from its length."""
        return need.tokens(self._bytes_per_token) + (round(self._around) if need.chat else 0)

    def most(self, need: Need) -> int:
        """Tokens that it can have at most: one is a byte at least, as in digits and rare scripts."""
        around = round(self._around) + need.messages * 16 + _MARGIN_TOKENS
        return need.size + need.given_tokens + around

    def observed(self, need: Need, tokens: int) -> None:
        """The model counted so many, at least one."""
        if need.images:
            return  # theirs are among them, nobody knows how many
        if need.size <= _MARGIN_TOKENS:
            if need.chat:
                around = max(0.0, tokens - need.tokens(self._bytes_per_token))
                self._around += _LEARNING_AROUND * (around - self._around)
        else:
            around = need.messages * 4 + (self._around if need.chat else 0.0)
            length = need.size / max(1.0, tokens - around)
            self._bytes_per_token += _LEARNING * (min(_LONGEST_TOKEN, length) - self._bytes_per_token)

    def save(self) -> dict[str, Any]:
        """All that is known, as what JSON can hold. It does not change while nothing is observed."""
        return {"bytes_per_token": self._bytes_per_token, "around": self._around}

    def load(self, saved: object, now: float) -> bool:
        """Takes up what `save` gave, however long ago. False for anything else."""
        if (known := recognised(saved, _Saved)) is None:
            return False
        self._bytes_per_token, self._around = known.bytes_per_token, known.around
        return True
