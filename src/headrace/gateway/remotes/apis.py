"""The two APIs that remote models speak, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from headrace import __version__
from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.remotes.anthropic_request import anthropic_body, check_anthropic
from headrace.gateway.remotes.anthropic_stream import AnthropicStream
from headrace.gateway.remotes.completion_request import check_completion, completion_body
from headrace.gateway.remotes.errors import chats_only
from headrace.gateway.remotes.openai_request import check_openai, openai_body
from headrace.gateway.remotes.openai_stream import OpenAIStream
from headrace.gateway.remotes.outgoing import There
from headrace.gateway.remotes.parts import Parts
from headrace.gateway.remotes.run import Stream
from headrace.gateway.remotes.secret import Secret

_HEADERS = {
    "content-type": "application/json",
    "accept-encoding": "identity",
    "user-agent": f"headrace/{__version__}",  # some servers refuse requests that name none
}


@dataclass(frozen=True, slots=True)
class Words:
    """How an API is asked for one kind of answer."""

    path: str
    """Below the URL of a table."""
    check: Callable[[str, Any], None]
    """Raises RemoteError where there are no words for what is asked of the remote of that name."""
    body: Callable[[There, Any], bytes]
    """Raises RequestError."""


@dataclass(frozen=True, slots=True)
class Api:
    """How to talk to an API."""

    chat: Words
    completions: Words | None
    """None: it has no text completions."""
    embeddings: str | None
    """The path of its embeddings; None: it has none."""
    stream: Callable[[str, Parts, Secret], Stream]
    key_header: str
    key_prefix: str = ""
    version: tuple[tuple[str, str], ...] = ()

    def words(self, name: str, request: ChatRequest | CompletionRequest) -> Words:
        """Those for this request. Raises RemoteError where the remote of that name has none."""
        if isinstance(request, ChatRequest):
            return self.chat
        if self.completions is None:
            raise chats_only(name)
        return self.completions

    @property
    def paths(self) -> Sequence[str]:
        """All that it has."""
        streamed = [words.path for words in (self.chat, self.completions) if words is not None]
        return streamed if self.embeddings is None else [*streamed, self.embeddings]

    def headers(self, secret: Secret, path: str) -> dict[str, str]:
        """Of every request there."""
        key = secret.reveal()
        credentials = {self.key_header: self.key_prefix + key} if key else {}
        accept = {"accept": "application/json" if path == self.embeddings else "text/event-stream"}
        return _HEADERS | accept | dict(self.version) | credentials

    def url(self, base: str, path: str) -> str:
        """Where requests go. `base` is a table's, with the API's version; Anthropic's may do without."""
        versioned = urlsplit(base).path.strip("/") or self.key_header != "x-api-key"
        return base.rstrip("/") + ("" if versioned else "/v1") + path


OPENAI = Api(
    Words("/chat/completions", check_openai, openai_body),
    Words("/completions", check_completion, completion_body),
    "/embeddings",
    OpenAIStream,
    "authorization",
    "Bearer ",
)
ANTHROPIC = Api(
    Words("/messages", check_anthropic, anthropic_body),
    None,
    None,
    AnthropicStream,
    "x-api-key",
    version=(("anthropic-version", "2023-06-01"),),
)
API_OF = {"openai": OPENAI, "anthropic": ANTHROPIC}
