"""The size of the block pool follows from free memory or from what was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backends.cache import BLOCK_TOKENS
from headrace.errors import CacheTooSmallError, ConfigError
from headrace.worker.cache_size import CacheSize, cache_size, default_bytes

BLOCK = 1 << 20  # bytes of a block: 1 MiB for 16 tokens


def size(
    *,
    free: int,
    model_context: int = 4096,
    context: int | None = None,
    running: int = 8,
    tokens: int | None = None,
    cache_bytes: int | None = None,
) -> CacheSize:
    return cache_size(
        block_bytes=BLOCK,
        model_context=model_context,
        context_length=context,
        max_running=running,
        free_bytes=free * BLOCK,
        cache_tokens=tokens,
        cache_bytes=cache_bytes,
    )


def decided(blocks: int, context: int) -> CacheSize:
    return CacheSize(blocks, blocks * BLOCK, context)


def test_a_quarter_of_the_free_memory_is_taken() -> None:
    assert size(free=2000) == decided(500, 4096)


def test_no_more_than_8_gib_are_taken() -> None:
    assert size(free=100_000, running=64) == decided(8192, 4096)
    assert default_bytes(2**40) == 8 * 2**30


def test_no_more_is_taken_than_running_requests_can_fill() -> None:
    assert size(free=100_000, running=2) == decided(2 * 256, 4096)


def test_the_context_is_lowered_to_what_memory_holds() -> None:
    assert size(free=400) == decided(100, 1600)


def test_a_context_that_was_asked_for_is_not_lowered_but_refused() -> None:
    with pytest.raises(ConfigError, match="context-length"):
        size(free=400, context=4096)


def test_too_little_memory_for_a_short_context_is_an_error() -> None:
    with pytest.raises(CacheTooSmallError):
        size(free=40)


def test_a_model_of_a_tiny_context_needs_just_that() -> None:
    assert size(free=40, model_context=100, running=1) == decided(7, 100)


def test_tokens_asked_for_are_rounded_up_to_whole_blocks() -> None:
    assert size(free=1000, tokens=4097) == decided(257, 4096)


def test_bytes_asked_for_are_rounded_down_to_whole_blocks() -> None:
    assert size(free=1000, cache_bytes=300 * BLOCK + 5) == decided(300, 4096)


def test_more_than_the_default_may_be_asked_for_but_not_more_than_is_free() -> None:
    assert size(free=1000, cache_bytes=900 * BLOCK).blocks == 900
    with pytest.raises(ConfigError, match="is free"):
        size(free=1000, cache_bytes=1100 * BLOCK)


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        ({"cache_bytes": 1}, "raise cache-gib"),
        ({"tokens": 32}, "raise cache-tokens"),
        ({"cache_bytes": 3000 * BLOCK}, "lower cache-gib"),
        ({"tokens": 3000 * BLOCK_TOKENS}, "lower cache-tokens"),
        ({"cache_bytes": 20 * BLOCK, "context": 4096}, "raise cache-gib"),
        ({"tokens": 320, "context": 4096}, "raise cache-tokens"),
    ],
)
def test_the_setting_that_is_to_blame_is_named(asked: dict[str, int], setting: str) -> None:
    with pytest.raises((ConfigError, CacheTooSmallError), match=setting):
        size(free=1000, **asked)


def test_tokens_and_bytes_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exclude"):
        size(free=1000, tokens=16, cache_bytes=16)


@pytest.mark.parametrize("context", [0, -1, 4097])
def test_a_context_the_model_was_not_made_for_is_refused(context: int) -> None:
    with pytest.raises(ConfigError, match="context-length must be from 1 to 4096"):
        size(free=1000, context=context)


@given(
    free=st.integers(0, 600),
    model_context=st.integers(1, 5000),
    context=st.none() | st.integers(1, 5000),
    running=st.integers(1, 70),
    tokens=st.none() | st.integers(1, 5000),
)
def test_the_context_never_exceeds_the_cache(
    free: int, model_context: int, context: int | None, running: int, tokens: int | None
) -> None:
    try:
        found = size(free=free, model_context=model_context, context=context, running=running, tokens=tokens)
    except (ConfigError, CacheTooSmallError):
        return
    assert 1 <= found.context_length <= found.blocks * BLOCK_TOKENS
    assert found.context_length <= model_context
    assert 0 <= found.pinnable <= found.blocks // 2
    assert (found.blocks - found.pinnable) * BLOCK_TOKENS >= found.context_length, "pins left too little"
