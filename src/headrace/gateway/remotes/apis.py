"""The two APIs that remote models speak, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.remotes.anthropic_request import anthropic_body, check_anthropic
from headrace.gateway.remotes.anthropic_stream import AnthropicStream
from headrace.gateway.remotes.openai_request import check_openai, openai_body
from headrace.gateway.remotes.openai_stream import OpenAIStream
from headrace.gateway.remotes.outgoing import There
from headrace.gateway.remotes.parts import Parts
from headrace.gateway.remotes.run import Stream
from headrace.gateway.remotes.secret import Secret

_HEADERS = {
    "content-type": "application/json",
    "accept": "text/event-stream",
    "accept-encoding": "identity",
}


@dataclass(frozen=True, slots=True)
class Api:
    """How to talk to an API."""

    path: str
    """Below the URL of a table."""
    check: Callable[[str, ChatRequest], None]
    """Raises RemoteError where there are no words for what is asked of the remote of that name."""
    body: Callable[[There, ChatRequest], bytes]
    """Raises RequestError."""
    stream: Callable[[str, Parts, Secret], Stream]
    key_header: str
    key_prefix: str = ""
    version: tuple[tuple[str, str], ...] = ()

    def headers(self, secret: Secret) -> dict[str, str]:
        """Of every request."""
        key = secret.reveal()
        credentials = {self.key_header: self.key_prefix + key} if key else {}
        return _HEADERS | dict(self.version) | credentials

    def url(self, base: str) -> str:
        """Where requests go. `base` is a table's, with the API's version; Anthropic's may do without."""
        versioned = urlsplit(base).path.strip("/") or self.key_header != "x-api-key"
        return base.rstrip("/") + ("" if versioned else "/v1") + self.path


OPENAI = Api("/chat/completions", check_openai, openai_body, OpenAIStream, "authorization", "Bearer ")
ANTHROPIC = Api(
    "/messages",
    check_anthropic,
    anthropic_body,
    AnthropicStream,
    "x-api-key",
    version=(("anthropic-version", "2023-06-01"),),
)
API_OF = {"openai": OPENAI, "anthropic": ANTHROPIC}
