"""Where an OpenAI-compatible server is, as a user writes it."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass, field
from pathlib import Path
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
    certificate: Path | None = None
    """The file of the one that the server has, PEM; None where it has to be one that this machine trusts."""

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """One that is not connected yet; `timeout` in seconds. Raises ConfigError for a wrong certificate."""
        if not self.secure:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        context = None if self.certificate is None else _trusting(self.certificate)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)


def parse_url(url: str, api_key: str | None = None, certificate: Path | None = None) -> Address:
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
    return Address(parts.hostname, port or (443 if secure else 80), secure, base, api_key, certificate)


def _sendable(key: str) -> bool:
    """Whether it can stand in a header; what cannot must not get there, for errors would show it."""
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Takes the file's first certificate, the server's own, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # it may be for the name that others call the server by
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whoever signed it need not be known
    try:
        first, end, _ = certificate.read_bytes().partition(b"-----END CERTIFICATE-----")
        context.load_verify_locations(cadata=(first + end).decode("ascii", "ignore"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls-cert: {certificate} cannot be read: {error}") from None
    return context
