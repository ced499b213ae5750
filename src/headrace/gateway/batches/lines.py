"""The lines of batch files, in OpenAI's format: one request, or one result, to a line of JSON."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta, Raw, Struct

from headrace.gateway.json_line import encode

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
"""Where the requests of a batch may go."""
MAX_LINE_BYTES = 8 * 2**20
_READ_BYTES = 2**20

_BEGINNING = b'{"id":"batch_req_'
"""Of every result."""


class RequestLine(Struct):
    """One request."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    """The result carries it; results come in any order."""
    url: str
    body: dict[str, Any]
    method: str = "POST"


class LineError(Struct):
    """Why there is no answer of the endpoint."""

    code: str
    message: str


class Response(Struct):
    """What the endpoint answered."""

    status_code: int
    request_id: str
    body: Raw


class ResultLine(Struct):
    """One result: a response, which may be a refusal, or the reason why there is none."""

    id: str
    custom_id: str | None
    response: Response | None = None
    error: LineError | None = None
    line: int | msgspec.UnsetType = msgspec.UNSET
    """Counted from 1; where the request has no id of its own to be known by."""


class _Known(Struct):
    """What must be known of a result to go on after it."""

    custom_id: str | None
    response: _Status | None = None
    line: int | None = None


class _Status(Struct):
    status_code: int


class BadLineError(Exception):
    """A line that is no request; `field` names the part."""

    def __init__(self, code: str, message: str, field: str | None = None):
        super().__init__(message)
        self.code = code
        self.field = field


_decode_request = msgspec.json.Decoder(RequestLine).decode
_decode_known = msgspec.json.Decoder(_Known).decode


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1; the beginning of one that is too long."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                _skip_line(file, line)
            if line.strip():
                yield number, line


def _skip_line(file: BinaryIO, read: bytes) -> None:
    while read and not read.endswith(b"\n"):
        read = file.readline(_READ_BYTES)


def parse_request(line: bytes, url: str | None = None) -> RequestLine:
    """The request in a line; of the batch's `url`, where it has one. Raises BadLineError."""
    if len(line) > MAX_LINE_BYTES:
        raise BadLineError("line_too_long", f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        request = _decode_request(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadLineError("invalid_json_line", f"the line is no batch request: {error}") from None
    if request.method != "POST":
        raise BadLineError("invalid_method", f"method: expected POST, not {request.method!r:.40}", "method")
    allowed = URLS if url is None else (url,)
    if request.url not in allowed:
        told = f"url: expected {' or '.join(allowed)}, not {request.url!r:.100}"
        raise BadLineError("invalid_url" if url is None else "mismatched_endpoint", told, "url")
    if request.body.get("stream"):
        raise BadLineError("stream_not_supported", "body.stream: a batch has no streams", "body.stream")
    return request


def answered(request: RequestLine, status: int, body: bytes) -> bytes:
    """The result line of a request that the endpoint has answered."""
    response = Response(status, "req_" + secrets.token_hex(12), _as_json(body))
    return encode(ResultLine(_result_id(), request.custom_id, response)) + b"\n"


def not_answered(custom_id: str | None, code: str, message: str, line: int | None = None) -> bytes:
    """The result line of what was not answered; `line` where its id does not say which that is."""
    result = ResultLine(_result_id(), custom_id, error=LineError(code, message))
    if line is not None:
        result.line = line
    return encode(result) + b"\n"


def _result_id() -> str:
    return "batch_req_" + secrets.token_hex(12)


def _as_json(body: bytes) -> Raw:
    """The body on one line, as JSON whatever it was."""
    try:
        return Raw(msgspec.json.format(body, indent=-1))
    except (msgspec.DecodeError, RecursionError):
        return Raw(encode(body.decode("utf-8", errors="replace")))


class Done(Struct):
    """Which requests have their result already."""

    ids: set[str]
    lines: set[int]
    """Numbers of the lines whose results have no id."""
    answered: int = 0
    failed: int = 0


def read_results(path: Path, done: Done) -> None:
    """Adds the results in the file to `done`. A last line that was only half written is cut off.

    Raises BadLineError for a line within the file that is no result: then it is some other file.
    """
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = 0
        while line := file.readline():
            if not line.endswith(b"\n") and _may_begin_a_result(line):
                file.truncate(end)
                os.fsync(file.fileno())
                return
            try:
                _add(_decode_known(line), done)
            except msgspec.DecodeError as error:
                raise BadLineError("not_results", f"{path} holds no results of a batch: {error}") from None
            end += len(line)


def _may_begin_a_result(line: bytes) -> bool:
    return line[: len(_BEGINNING)] == _BEGINNING[: len(line)]


def _add(known: _Known, done: Done) -> None:
    if known.custom_id is not None:
        done.ids.add(known.custom_id)
    elif known.line is not None:
        done.lines.add(known.line)
    if known.response is not None and known.response.status_code < 400:
        done.answered += 1
    else:
        done.failed += 1
