"""Names for full blocks, the same on every worker: digests chained from the namespace down to the block.

Equal digests mean equal tokens in an equal context. BLAKE2b (RFC 7693), 16 bytes: nobody finds two blocks
of one digest, so a digest may stand for a block between machines; within the prefix tree tokens decide.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from headrace.backends.cache import BLOCK_TOKENS
from headrace.engine.request import PrefixNamespace

DIGEST_BYTES = 16
_BLOCK = struct.Struct(f"<{BLOCK_TOKENS}i")


def root_digest(namespace: PrefixNamespace) -> bytes:
    """The digest above a namespace's first blocks, of all its fields."""
    fields = [field.encode() for field in namespace]
    lengths = struct.pack(f"<{len(fields)}q", *map(len, fields))
    return blake2b(lengths + b"".join(fields), digest_size=DIGEST_BYTES).digest()


def block_digest(above: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of a full block below the block, or root, that has the digest `above`."""
    return blake2b(above + _BLOCK.pack(*tokens), digest_size=DIGEST_BYTES).digest()


def chain(root: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
    """The digests of the full blocks of a token sequence, in order; a begun block has none."""
    full = len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    packed = struct.pack(f"<{full}i", *tokens[:full])
    digest = root
    for start in range(0, len(packed), _BLOCK.size):
        digest = blake2b(digest + packed[start : start + _BLOCK.size], digest_size=DIGEST_BYTES).digest()
        yield digest
