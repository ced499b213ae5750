"""What is said of each endpoint in the description of the API: what it is for, what it takes and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from headrace.fleet.rolling import Progress
from headrace.gateway.batches.api import UploadForm
from headrace.gateway.batches.files import FileObject
from headrace.gateway.batches.objects import BatchList, BatchObject, BatchRequest, FileDeleted, FileList
from headrace.gateway.embeddings import EmbeddingsAnswer, EmbeddingsRequest
from headrace.gateway.fleet_api import FleetObject
from headrace.gateway.ollama.requests import ModelRequest
from headrace.gateway.openai.answers import ChatChoice, CompletionChoice, Usage
from headrace.gateway.shadow.feedback import FeedbackAnswer, FeedbackRequest
from headrace.gateway.token_api import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)


class ChatCompletion(Struct):
    """The answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: Usage


class Completion(Struct):
    """The answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChoice]
    usage: Usage


class ModelObject(Struct):
    """A model that can be asked."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    """The same as `id`; vLLM's load client looks for it."""
    type: Literal["model"]
    display_name: str
    created_at: str
    max_model_len: int | UnsetType = UNSET
    """The most tokens of prompt and answer together."""
    sampling_defaults: dict[str, Any] | UnsetType = UNSET


class ModelList(Struct):
    """GET /v1/models"""

    data: list[ModelObject]
    object: Literal["list"]
    has_more: bool | UnsetType = UNSET
    """This and the following only where the request has Anthropic's header, `anthropic-version`."""
    first_id: str | UnsetType | None = UNSET
    last_id: str | UnsetType | None = UNSET


class Health(Struct):
    """GET /health"""

    status: str
    workers: list[dict[str, Any]] | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Words:
    """What is said of one operation."""

    summary: str
    body: Any = None
    """The type of its body; None where the endpoint itself knows, or there is none."""
    answer: Any = None
    """The type of its JSON answer; None for any object."""
    answer_type: str = "application/json"
    body_type: str = "application/json"
    query: tuple[str, ...] = ()
    """Names in QUERY."""
    streams: str | None = None
    """The content type of its answer as a stream, where `stream` can ask for one."""


SSE = "text/event-stream"
LINES = "application/x-ndjson"
_OBJECT = dict[str, Any]
"""Of a body whose fields the endpoint itself tells apart."""
_PAGES = ("limit", "after", "order")
QUERY: Mapping[str, Mapping[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 10_000},
    "after": {"type": "string", "description": "The id behind which the page begins."},
    "order": {"type": "string", "enum": ["asc", "desc"]},
    "purpose": {"type": "string"},
    "ttft_limit_ms": {"type": "number", "exclusiveMinimum": 0},
    "tpot_limit_ms": {"type": "number", "exclusiveMinimum": 0},
    "after_id": {"type": "string", "description": "As Anthropic's clients say `after`."},
    "before_id": {"type": "string", "description": "The id before which the page ends."},
}

WORDS: Mapping[tuple[str, str], Words] = {
    ("POST", "/v1/chat/completions"): Words("Answer a conversation", answer=ChatCompletion, streams=SSE),
    ("POST", "/v1/completions"): Words("Continue texts", answer=Completion, streams=SSE),
    ("POST", "/v1/embeddings"): Words("Vectors of texts", EmbeddingsRequest, EmbeddingsAnswer),
    ("POST", "/tokenize"): Words("Tokens of a text or conversation", TokenizeRequest, TokenizeAnswer),
    ("POST", "/detokenize"): Words("The text of tokens", DetokenizeRequest, DetokenizeAnswer),
    ("GET", "/v1/models"): Words(
        "List the models", answer=ModelList, query=("limit", "after_id", "before_id")
    ),
    ("GET", "/v1/models/{name}"): Words("Describe a model", answer=ModelObject),
    ("POST", "/v1/files"): Words(
        "Upload a file of requests", UploadForm, FileObject, body_type="multipart/form-data"
    ),
    ("GET", "/v1/files"): Words("List files", answer=FileList, query=(*_PAGES, "purpose")),
    ("GET", "/v1/files/{id}"): Words("Describe a file", answer=FileObject),
    ("DELETE", "/v1/files/{id}"): Words("Delete a file", answer=FileDeleted),
    ("GET", "/v1/files/{id}/content"): Words("A file's bytes", answer_type="application/octet-stream"),
    ("POST", "/v1/batches"): Words("Run a file of requests", BatchRequest, BatchObject),
    ("GET", "/v1/batches"): Words("List batches", answer=BatchList, query=_PAGES),
    ("GET", "/v1/batches/{id}"): Words("Describe a batch", answer=BatchObject),
    ("POST", "/v1/batches/{id}/cancel"): Words("End a batch early", answer=BatchObject),
    ("GET", "/v1/prefix"): Words("List hot prefixes of the caches", query=("limit",)),
    ("POST", "/v1/prefix/explain"): Words("How much of a prompt the cache holds", _OBJECT),
    ("POST", "/v1/prefix/warm"): Words("Put a prompt into the cache", _OBJECT),
    ("POST", "/v1/prefix/pin"): Words("Keep a prompt in the cache", _OBJECT),
    ("POST", "/v1/prefix/unpin"): Words("Let go of a pinned prompt", _OBJECT),
    ("POST", "/v1/feedback"): Words("Say how good a routed answer was", FeedbackRequest, FeedbackAnswer),
    ("GET", "/v1/fleet"): Words(
        "Workers, their load and speeds, and a plan",
        answer=FleetObject,
        query=("ttft_limit_ms", "tpot_limit_ms"),
    ),
    ("POST", "/v1/fleet/restart"): Words("Replace every worker, one after another", answer=Progress),
    ("POST", "/v1/fleet/workers/{name}"): Words("Change a worker's role, or drain it"),
    ("POST", "/v1/responses"): Words("Answer, in OpenAI's newer words", streams=SSE),
    ("POST", "/v1/messages"): Words("Answer a conversation, in Anthropic's words", streams=SSE),
    ("POST", "/v1/messages/count_tokens"): Words("Count a conversation's tokens"),
    ("GET", "/"): Words(
        "A line of text, for those who look whether a server is there", answer_type="text/plain"
    ),
    ("GET", "/api/version"): Words("The server's version"),
    ("GET", "/api/tags"): Words("List the models, in Ollama's words"),
    ("GET", "/api/ps"): Words("List the models that are loaded"),
    ("POST", "/api/show"): Words("Describe a model", ModelRequest),
    ("POST", "/api/pull"): Words("Fetch a model", ModelRequest, streams=LINES),
    ("DELETE", "/api/delete"): Words("Delete a model that was pulled", ModelRequest),
    ("POST", "/api/embed"): Words("Vectors of texts", ModelRequest),
    ("POST", "/api/embeddings"): Words("The vector of a text", ModelRequest),
    ("POST", "/api/chat"): Words("Answer a conversation, in Ollama's words", streams=LINES),
    ("POST", "/api/generate"): Words("Continue a text, in Ollama's words", streams=LINES),
    ("GET", "/health"): Words("Whether all models can be asked", answer=Health),
    ("GET", "/metrics"): Words("Figures for Prometheus", answer_type="text/plain"),
    ("GET", "/openapi.json"): Words("This description"),
    ("GET", "/docs"): Words("This description as a page", answer_type="text/html"),
}
"""By method and path. What is not here is described by its path and the body that its endpoint takes."""
