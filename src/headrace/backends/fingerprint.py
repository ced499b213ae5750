"""Numerics fingerprint: workers with equal ones compute equal bits, so their blocks and streams may move."""

from __future__ import annotations

import hashlib

import msgspec

NUMERICS_VERSION = 2
"""Raised by any change to a kernel that alters a single bit of a result."""


class Fingerprint(msgspec.Struct, frozen=True):
    """Everything that the bits of a token depend on, apart from the request itself."""

    weights: str
    """SHA-256 of the weights and hyperparameters, hexadecimal."""
    layout: str
    """Layout name of a cache block."""
    kernels: str
    """Kernel class: implementations in one class agree bit for bit."""
    cache_dtype: str
    version: int = NUMERICS_VERSION

    def digest(self) -> str:
        """Sixteen hexadecimal digits, equal exactly when the fingerprints are."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]
