"""The secret that a gateway shares with workers on other hosts, and the keys that both derive from it.

The keys are those of CurveZMQ (https://rfc.zeromq.org/spec/26/), which authenticates both sides and encrypts
what they say under keys of each connection's own. The secret itself is never sent.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from headrace.errors import ConfigError

_SHORTEST = 32
"""Characters. Keys are derived quickly, so the secret must be one that nobody can guess."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, in Z85."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """Both sides' key pairs: who knows the secret knows them."""

    gateway: KeyPair
    worker: KeyPair
    blocks: bytes = field(repr=False)
    """By which workers that hand cache blocks over know each other."""


def new_secret() -> str:
    """A fresh secret of 256 random bits."""
    return secrets.token_urlsafe(32)


def read_keys(file: Path) -> Keys:
    """The keys that the secret in the file makes; white space around it does not count.

    Raises ConfigError where the file cannot be read, or what it holds is too short.
    """
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"the workers' secret: {file} cannot be read: {error.strerror}") from None
    if len(secret) < _SHORTEST:
        raise ConfigError(
            f"the workers' secret in {file} has {len(secret)} characters and must have at least {_SHORTEST}; "
            "`headrace worker secret` makes one"
        )
    if not zmq.has("curve"):
        raise ConfigError("this installation of ZeroMQ has no encryption (CURVE): install pyzmq's own wheel")
    return Keys(
        gateway=_pair(_derive(secret, b"headrace-gateway")),
        worker=_pair(_derive(secret, b"headrace-worker")),
        blocks=_derive(secret, b"headrace-blocks"),
    )


def _derive(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=32, person=purpose).digest()


def _pair(secret: bytes) -> KeyPair:
    own = z85.encode(secret)
    return KeyPair(zmq.curve_public(own), own)
