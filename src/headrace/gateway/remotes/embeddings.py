"""Embeddings of a remote model: asked for in OpenAI's words, and handed on as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from headrace.gateway.embeddings import EmbeddingsRequest
from headrace.gateway.remotes.errors import garbage
from headrace.gateway.remotes.outgoing import There
from headrace.gateway.remotes.tally import Reported

_VECTOR_BYTES = 2**18
"""Of a vector as JSON, at most: 4096 numbers take about a third."""
_MOST_BYTES = 2**28
"""Of an answer."""

_encode = msgspec.json.Encoder().encode


class _Embedding(Struct):
    index: int
    embedding: Raw
    """Nobody here looks at the numbers."""


class _Usage(Struct):
    prompt_tokens: Any = -1


class _Answer(Struct):
    data: list[_Embedding]
    usage: Raw = Raw(b"null")
    """Decoded apart: a wrong one spoils no answer."""


_decode = msgspec.json.Decoder(_Answer).decode
_decode_usage = msgspec.json.Decoder(_Usage | None).decode


def most_bytes(inputs: int) -> int:
    """That an answer can have."""
    return min(_MOST_BYTES, (inputs + 1) * _VECTOR_BYTES)


def embeddings_body(there: There, request: EmbeddingsRequest) -> bytes:
    """What the remote is asked."""
    body: dict[str, Any] = {"model": there.name, "input": request.input}
    for field in ("encoding_format", "dimensions"):
        if (value := getattr(request, field)) is not None:
            body[field] = value
    return _encode(body)


def read_embeddings(
    name: str, body: bytes, inputs: int, request: EmbeddingsRequest
) -> tuple[Sequence[Raw], Reported | None]:
    """The vectors in the inputs' order, as JSON; and the usage, where it is told. Raises RemoteError."""
    try:
        answer = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise garbage(name, "something else than embeddings") from None
    vectors = {each.index: each.embedding for each in answer.data}
    if len(answer.data) != inputs or vectors.keys() != set(range(inputs)):
        raise garbage(name, "embeddings of other texts than it was given")
    begins = b'"' if request.encoding_format == "base64" else b"["
    if not all(memoryview(vector)[:1] == begins for vector in vectors.values()):
        raise garbage(name, "embeddings in another form than was asked for")
    try:
        usage = _decode_usage(answer.usage)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        usage = None
    told = None if usage is None else Reported(usage.prompt_tokens, 0, 0)
    return [vectors[index] for index in range(inputs)], told
