"""API keys: what a key is, where keys are kept, and which of them a client has shown.

A key is 256 random bits, so its SHA-256 is enough to keep: a slow hash would only guard a secret that can be
guessed, and it would cost every request milliseconds.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from headrace.errors import ConfigError

PREFIX = "hr-"
_HASH_PREFIX = "sha256:"
ENVIRONMENT = "environment"
"""The name of the key that came in HEADRACE_API_KEY."""
_SHORTEST = 16
"""Characters of a key that someone made up; fewer can be guessed."""

_NAME = re.compile(r"[A-Za-z0-9_.@+-]{1,64}")
"""Names stand in logs and metrics."""

_Count = Annotated[int, Meta(ge=1)]


class KeyLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one key may use; None: as much as there is."""

    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    """Of prompts and answers together."""
    concurrency: _Count | None = None
    """Requests that wait or run at the same time."""
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Its share when the server is full, against the other keys' weights."""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """The most urgent (lowest) priority that its requests get, whatever they ask for; None: what they ask."""
    models: list[str] | None = None
    """The models it may ask; None: all."""
    operator: bool = False
    """Whether it may see and change the workers (/v1/fleet)."""


class _Entry(KeyLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key as the file has it: its hash, or the key itself."""

    hash: str | None = None
    key: Annotated[str, Meta(min_length=_SHORTEST)] | None = None


class ApiKey(Struct, frozen=True):
    """A key that is known. Only its hash is held in memory."""

    name: str
    digest: bytes
    """SHA-256 of the key."""
    limits: KeyLimits


def digest(key: str | bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def new_key() -> tuple[str, str]:
    """A fresh key, and its hash as the file has it."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, _HASH_PREFIX + digest(key).hex()


def check_name(name: str) -> None:
    """Raises ConfigError for what cannot be a key's name."""
    if not _NAME.fullmatch(name):
        raise ConfigError("a key's name has up to 64 letters, digits and any of . _ @ + -")
    if name == ENVIRONMENT:
        raise ConfigError(f"the name {ENVIRONMENT} is taken by HEADRACE_API_KEY; choose another")


def environment_key(key: str) -> ApiKey:
    """The key of HEADRACE_API_KEY, which has no limits. Raises ConfigError for one that can be guessed."""
    if len(key) < _SHORTEST:
        raise ConfigError(
            f"HEADRACE_API_KEY is too short: at least {_SHORTEST} characters; `headrace key new` makes one"
        )
    return ApiKey(ENVIRONMENT, digest(key), KeyLimits())


def read_keys(file: Path) -> list[ApiKey]:
    """The keys of a TOML file, one table `[keys.NAME]` each.

    Raises ConfigError that names the file, the key's name and what is wrong; never the key.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--api-keys: {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-keys: {file} is not valid TOML: {error}") from None
    tables = content.pop("keys", {})
    if content or not isinstance(tables, dict):
        raise ConfigError(f"--api-keys: {file}: expected only tables [keys.NAME], one for each key")
    keys = [_read_key(file, name, table) for name, table in tables.items()]
    seen: dict[bytes, str] = {}
    for key in keys:
        if (other := seen.setdefault(key.digest, key.name)) != key.name:
            raise ConfigError(f"--api-keys: {file}: '{other}' and '{key.name}' are the same key")
    return keys


def _read_key(file: Path, name: str, table: Any) -> ApiKey:
    where = f"--api-keys: {file}: [keys.{name}]"
    try:
        check_name(name)
        entry = msgspec.convert(table, _Entry)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from None
    if (entry.hash is None) == (entry.key is None):
        raise ConfigError(f"{where}: give either 'hash' (from `headrace key new`) or 'key'")
    limits = KeyLimits(**{field: getattr(entry, field) for field in KeyLimits.__struct_fields__})
    if entry.key is not None:
        return ApiKey(name, digest(entry.key), limits)
    assert entry.hash is not None
    try:
        known = bytes.fromhex(entry.hash.removeprefix(_HASH_PREFIX))
    except ValueError:
        known = b""
    if len(known) != hashlib.sha256().digest_size:
        raise ConfigError(f"{where}: 'hash' must be '{_HASH_PREFIX}' and 64 hexadecimal digits")
    return ApiKey(name, known, limits)


class KeyRing:
    """The keys that open the server. Finding one takes the same time whatever was shown.

    Keys are looked up by a keyed hash whose secret is drawn anew by every process: how long a look-up takes
    tells nothing about how near to a key a guess was.
    """

    def __init__(self, keys: Iterable[ApiKey]):
        self._secret = secrets.token_bytes(32)
        self.keys: Mapping[str, ApiKey] = {key.name: key for key in keys}
        self._by_tag = {self._tag(key.digest): key for key in self.keys.values()}

    def find(self, shown: bytes) -> ApiKey | None:
        """The key that a client has shown, None where there is no such key."""
        return self._by_tag.get(self._tag(digest(shown)))

    def _tag(self, key_digest: bytes) -> bytes:
        return hashlib.blake2b(key_digest, key=self._secret).digest()


def shown_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key in a request's headers: as a bearer token, as x-api-key (Anthropic) or as api-key (Azure)."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer" and token.strip():
                return token.strip()
        elif name in (b"x-api-key", b"api-key") and value:
            return value
    return None
