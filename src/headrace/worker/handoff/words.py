"""What prefill and decode worker say to each other: the headers of a transfer connection's frames."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.backends.cache import BLOCK_TOKENS

BEAT_SECONDS = 1.0
"""A prefill worker says so often that it is there, where it has nothing else to say."""
SILENCE_SECONDS = 5.0
"""After so long without a word it is given up, and the prompt computed where it is wanted."""

BlockView = Callable[[int, int], memoryview]
"""`Backend.block_view`: the bytes of a cache group's block."""


class Wanted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the prefill worker: send a prompt's blocks from token `start` (a multiple of 16) on."""

    id: str
    start: int
    fingerprint: str
    """Digest of the decode worker's: blocks move between equal ones only."""


class Unwanted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the prefill worker: send nothing more of it."""

    id: str


class Blocks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the decode worker: the frame's blocks hold the tokens from `start` up to `end`.

    A block of each cache group for 16 tokens, then a block of each for the next 16.
    """

    id: str
    start: int
    end: int


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the decode worker: no more of this prompt will come. Why is empty where it is complete."""

    id: str
    why: str = ""


class Beat(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the decode worker: a sign of life."""


encode = msgspec.msgpack.Encoder().encode
decode_asked = msgspec.msgpack.Decoder(Wanted | Unwanted).decode
decode_told = msgspec.msgpack.Decoder(Blocks | Ended | Beat).decode


def blocks_of(tokens: int) -> int:
    """Blocks of one group that hold so many tokens."""
    return -(-tokens // BLOCK_TOKENS)
