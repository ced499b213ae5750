"""The server under load: where it is, what it serves, and requests in its terms."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from headrace.bench.serve.workloads import Ask
from headrace.errors import ConfigError

_SECONDS = 10
"""For a server to say what it serves."""


@dataclass(frozen=True, slots=True)
class Address:
    """Of an OpenAI-compatible API."""

    host: str
    port: int
    secure: bool
    base: str
    """What the paths begin with, before /v1."""
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One model of a server."""

    address: Address
    model: str
    context: int | None
    """The most tokens of prompt and answer; None where the server does not tell."""

    def request(self, ask: Ask) -> bytes:
        """The whole HTTP request: greedy, streamed, its answer as long as asked."""
        fields: dict[str, object] = {"model": self.model, "messages" if ask.chat else "prompt": ask.prompt}
        fields |= {"max_tokens": ask.max_tokens, "temperature": 0, "ignore_eos": True}
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        body = msgspec.json.encode(fields)
        address = self.address
        lines = [f"POST {address.base}/v1/{'chat/' if ask.chat else ''}completions HTTP/1.1"]
        lines += [f"Host: {address.host}:{address.port}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in _headers(address).items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode() + body


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def parse_url(url: str, api_key: str | None = None) -> Address:
    """The address, with or without http:// and /v1. Raises ConfigError for what is no URL."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url: expected an address like http://127.0.0.1:8000, not {url!r}")
    secure = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname, port or (443 if secure else 80), secure, base, api_key)


def find(address: Address, model: str | None) -> Target:
    """The named model, or the server's first. Raises ConfigError where nothing answers or serves it."""
    try:
        status, body = get(address, "/v1/models")
        served = msgspec.json.decode(body, type=_Models).data if status == 200 else []
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise ConfigError(
            f"--url: no OpenAI-compatible server at {address.host}:{address.port} ({error})"
        ) from None
    for found in served:
        if model in (None, found.id):
            return Target(address, found.id, found.max_model_len)
    if model is None:
        raise ConfigError(f"--model: needed, for the server lists no models (status {status})")
    if served:
        raise ConfigError(f"--model: the server has {', '.join(m.id for m in served)}, not {model!r}")
    return Target(address, model, None)


def get(address: Address, path: str) -> tuple[int, bytes]:
    """Status and body. Raises OSError or HTTPException where the server cannot be reached."""
    kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=_SECONDS)
    try:
        connection.request("GET", address.base + path, headers=_headers(address))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _headers(address: Address) -> dict[str, str]:
    return {} if address.api_key is None else {"Authorization": f"Bearer {address.api_key}"}
