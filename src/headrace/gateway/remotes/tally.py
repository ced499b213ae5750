"""A request's tokens: as the remote reports them where that can be, else estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.gateway.openai.answers import PromptTokensDetails, Usage
from headrace.gateway.remotes.parts import Parts
from headrace.routing.tables import IMAGE_TOKENS

_CHARACTERS = 4
"""Of a token, on average."""
_LONGEST = 128
"""Bytes of a token, at most."""
_SLACK = 64
"""Tokens that leave no text, for each choice and call."""
_INPUT_SLACK = 4096
"""Tokens that a remote may put around a prompt: its own words about tools and formats."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What a remote says of a request's tokens."""

    input: object
    cached: object
    output: object
    unseen: object = 0
    """Of the output, what may be reasoning that was not sent."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a request before its answer."""

    size: int
    """Bytes of the body that was sent, without the images."""
    images: int
    choices: int
    most_tokens: int
    """Of answer, for each choice."""
    context_length: int | None
    """The model's, where it is known."""


class Tally:
    """Counts one request. The remote's word is taken where it is possible, number by number."""

    def __init__(self, asked: Asked, parts: Parts):
        self._asked = asked
        self._parts = parts
        self.reported: Reported | None = None
        """The last that came."""

    @property
    def most_tokens(self) -> int:
        """Of answer, over all choices."""
        return self._asked.choices * self._asked.most_tokens

    @property
    def believed(self) -> bool:
        """The remote reported usage, and all of it is possible."""
        told = self.reported
        return told is not None and self._input_fits(told) and self._cached_fits(told) and self._fits(told)

    def usage(self) -> Usage:
        """Tokens so far, over all choices."""
        told = self.reported
        prompt = min(self._asked.size // _CHARACTERS + 1, self._asked.context_length or self._asked.size)
        cached = 0
        generated = min(-(-self._parts.characters // _CHARACTERS), self.most_tokens)
        if told is not None and self._input_fits(told):
            prompt = _count(told.input)
            cached = _count(told.cached) if self._cached_fits(told) else 0
        if told is not None and self._fits(told):
            generated = _count(told.output)
        return Usage(prompt, generated, prompt + generated, PromptTokensDetails(cached))

    def _input_fits(self, told: Reported) -> bool:
        most = self._asked.size + self._asked.images * IMAGE_TOKENS + _INPUT_SLACK
        if self._asked.context_length is not None:
            most = min(most, self._asked.context_length)
        return 1 <= _count(told.input) <= most

    def _cached_fits(self, told: Reported) -> bool:
        return 0 <= _count(told.cached) <= _count(told.input)

    def _fits(self, told: Reported) -> bool:
        """Whether the output's tokens may have written what came, and are no more than were asked for."""
        output, unseen = _count(told.output), max(0, _count(told.unseen))
        slack = _SLACK * (self._asked.choices + self._parts.calls)
        least = -(-self._parts.characters // _LONGEST)
        return least <= output <= self.most_tokens and output - unseen <= self._parts.size + slack


def _count(value: Any) -> int:
    """The number, or -1 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
