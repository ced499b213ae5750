"""The server under load: where it is, what it serves, and requests in its terms."""

from __future__ import annotations

import http.client
from dataclasses import dataclass

import msgspec

from headrace.address import Address
from headrace.bench.serve.workloads import Ask
from headrace.errors import ConfigError

_SECONDS = 10
"""For a server to say what it serves."""


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
        lines += [f"{name}: {value}" for name, value in address.headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode() + body


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def find(address: Address, model: str | None) -> Target:
    """The named model, or the server's first. Raises ConfigError where none answers, has it or lets us in."""
    try:
        status, body = get(address, "/v1/models")
        served = msgspec.json.decode(body, type=_Models).data if status == 200 else []
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise ConfigError(
            f"--url: no OpenAI-compatible server at {address.host}:{address.port} ({error})"
        ) from None
    if status == 401:
        raise ConfigError("--api-key: the server needs a key that it knows")
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
    connection = address.connection(_SECONDS)
    try:
        connection.request("GET", address.base + path, headers=address.headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
