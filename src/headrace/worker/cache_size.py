"""How many cache blocks a worker gets, and the context length that they allow."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.backends.cache import BLOCK_TOKENS
from headrace.errors import CacheTooSmallError, ConfigError

_MEMORY_SHARE = 0.25
_MOST_BYTES = 8 * 2**30

MIN_CONTEXT = 256
"""Below this many tokens a context is not worth serving (a model of a shorter context needs just that)."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What was decided."""

    blocks: int
    """Blocks in each group's pool."""
    bytes: int
    """What they take, in all groups."""
    context_length: int
    """Tokens of prompt and output together that one request may hold; lowered where memory is short."""

    @property
    def pinnable(self) -> int:
        """Blocks that pins may take: half of all, and never the room that the longest request needs."""
        return min(self.blocks // 2, self.blocks - _blocks(self.context_length))


def default_bytes(free_bytes: int, workers: int = 1) -> int:
    """The most that a cache takes where nothing else is asked for: a quarter of free memory, at most 8 GiB.

    So many workers that start at a time share the quarter.

    The rest is for the gateway and other programs, and beyond 8 GiB a cache seldom brings more.
    """
    return min(int(free_bytes * _MEMORY_SHARE) // workers, _MOST_BYTES)


def cache_size(
    *,
    block_bytes: int,
    model_context: int,
    context_length: int | None,
    max_running: int,
    free_bytes: int,
    cache_tokens: int | None = None,
    cache_bytes: int | None = None,
    workers: int = 1,
) -> CacheSize:
    """Blocks for the tokens or bytes asked for, else for `default_bytes` of free memory.

    Args:
        block_bytes: bytes of one block in every group.
        model_context: tokens the model was made for.
        context_length: tokens asked for; None means the model's, or as many as fit.
        max_running: requests that run at the same time. More blocks than they can ever fill are not taken
            by default.
        free_bytes: memory that can be taken, after the weights were loaded.
        cache_tokens: tokens asked for, in place of the default.
        cache_bytes: bytes asked for, in place of the default.
        workers: how many start at a time and share what is free by default.

    Raises:
        ConfigError: a number asked for is impossible, or the context asked for does not fit.
        CacheTooSmallError: memory does not even hold a short context.
    """
    if context_length is not None and not 1 <= context_length <= model_context:
        raise ConfigError(f"context-length must be from 1 to {model_context}, what the model was made for")
    if cache_tokens is not None and cache_bytes is not None:
        raise ConfigError("cache-tokens and cache-gib exclude each other: give one of them")
    context = context_length or model_context

    if cache_tokens is not None:
        blocks = _blocks(cache_tokens)
    elif cache_bytes is not None:
        blocks = cache_bytes // block_bytes
    else:
        blocks = min(default_bytes(free_bytes, workers) // block_bytes, max_running * _blocks(context))
    setting = "cache-gib" if cache_tokens is None else "cache-tokens"
    asked = cache_tokens is not None or cache_bytes is not None
    if asked and blocks * block_bytes > free_bytes:
        raise ConfigError(
            f"a cache of {blocks * BLOCK_TOKENS} tokens takes {_gib(blocks * block_bytes)}, "
            f"but {_gib(free_bytes)} of memory is free: lower {setting}"
        )

    if blocks >= _blocks(context):
        return CacheSize(blocks, blocks * block_bytes, context)
    if context_length is not None:
        raise ConfigError(
            f"a context of {context} tokens takes {_gib(_blocks(context) * block_bytes)} of cache, "
            f"but only {_gib(blocks * block_bytes)} can be had: lower context-length or raise {setting}"
        )
    if blocks * BLOCK_TOKENS < min(MIN_CONTEXT, model_context):
        raise CacheTooSmallError(
            f"the cache can have {_gib(blocks * block_bytes)}, which holds {blocks * BLOCK_TOKENS} tokens: "
            f"{'' if asked else 'free memory, '}raise {setting} or take a smaller model"
        )
    return CacheSize(blocks, blocks * block_bytes, blocks * BLOCK_TOKENS)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
