"""A prefix cache that holds what was warmed or pinned, and nothing of what requests compute."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.prefix_report import CachedPrefix
from headrace.errors import RequestError
from headrace.fleet.prefixes import Pin
from headrace.worker.messages import PrefixExplained, PrefixPinned

_MOST_PINNED = 8
"""Blocks."""
_MOST_WARMED = 64
"""Prompts; the oldest goes first."""


class FakePrefixes:
    """Answers as a fleet's `Prefixes` do, of one replica."""

    def __init__(self) -> None:
        self.warmed: dict[tuple[str, tuple[int, ...]], int] = {}
        """By salt and tokens: how often."""
        self.pins: dict[str, Pin] = {}

    def id_of(self, tokens: Sequence[int], salt: str = "") -> str:
        named = f"{salt!r}{list(tokens)}"
        return hashlib.blake2b(named.encode(), digest_size=8).hexdigest()

    async def explain(self, tokens: Sequence[int], salt: str = "") -> PrefixExplained:
        held = [known for (of, known) in self.warmed if of == salt]
        nearest = max(held, key=lambda known: _common(known, tokens), default=())
        cached = _common(nearest, tokens)
        following = [] if cached == len(tokens) else list(nearest[cached:])
        return PrefixExplained("explain", cached, following)

    async def hottest(self, limit: int, salt: str = "") -> list[CachedPrefix]:
        pinned = {pin.tokens for pin in self.pins.values() if pin.salt == salt}
        found = [
            CachedPrefix(tokens, len(tokens) // BLOCK_TOKENS, hits, hits, tokens in pinned)
            for (of, tokens), hits in self.warmed.items()
            if of == salt
        ]
        return sorted(found, key=lambda prefix: -prefix.hits * len(prefix.tokens))[:limit]

    async def warm(self, tokens: Sequence[int], salt: str = "") -> None:
        key = (salt, tuple(tokens))
        self.warmed[key] = self.warmed.get(key, 0) + 1
        if len(self.warmed) > _MOST_WARMED:
            del self.warmed[next(iter(self.warmed))]

    async def pin(self, tokens: Sequence[int], salt: str = "") -> tuple[Pin, PrefixPinned]:
        whole = tuple(tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS])
        if not whole:
            raise RequestError("A pin holds whole blocks.")
        pin = Pin(self.id_of(whole, salt), whole, salt)
        blocks = sum(len(one.tokens) for one in {**self.pins, pin.id: pin}.values()) // BLOCK_TOKENS
        if blocks > _MOST_PINNED:
            raise RequestError("There is no room for more pins.")
        await self.warm(whole, salt)
        self.pins[pin.id] = pin
        return pin, PrefixPinned("pin", len(whole), blocks, _MOST_PINNED)

    async def unpin(self, pin_id: str) -> Pin | None:
        return self.pins.pop(pin_id, None)


def _common(known: Sequence[int], tokens: Sequence[int]) -> int:
    same = 0
    for one, other in zip(known, tokens, strict=False):
        if one != other:
            break
        same += 1
    return same
