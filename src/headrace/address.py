"""Where an OpenAI-compatible server is, as a user writes it."""

from __future__ import annotations

import http.client
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """Of an OpenAI-compatible API."""

    host: str
    port: int
    secure: bool
    base: str
    """What the paths begin with, before /v1."""
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """One that is not connected yet; `timeout` in seconds."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout)


def parse_url(url: str, api_key: str | None = None) -> Address:
    """The address, with or without http:// and /v1. Raises ConfigError for what is no URL or no key."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url: expected an address like http://127.0.0.1:8000, not {url!r}")
    if api_key is not None and not _sendable(api_key):
        raise ConfigError("--api-key: expected printable ASCII characters, without spaces around them")
    secure = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname, port or (443 if secure else 80), secure, base, api_key)


def _sendable(key: str) -> bool:
    """Whether it can stand in a header; what cannot must not get there, for errors would show it."""
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()
