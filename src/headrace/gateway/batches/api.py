"""The endpoints of files and batches: /v1/files and /v1/batches, as OpenAI has them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from headrace.errors import RequestError
from headrace.gateway.batches.files import FileObject
from headrace.gateway.batches.objects import (
    BatchList,
    BatchObject,
    BatchRequest,
    FileDeleted,
    FileList,
)
from headrace.gateway.batches.service import Batches
from headrace.gateway.body import ClientGoneError, decode, read_body
from headrace.gateway.connection import send_error
from headrace.gateway.errors import UnavailableError, as_request_error, missing
from headrace.gateway.state import Gateway

MAX_UPLOAD_BYTES = 256 * 2**20
_FORM_BYTES = 64 * 2**10
"""What an upload may have besides its file."""
_MOST_LISTED = 10_000
_FILES_LISTED = 10_000
_BATCHES_LISTED = 20

_batch_request = msgspec.json.Decoder(BatchRequest)

Listed = TypeVar("Listed", FileObject, BatchObject)


class UploadForm(Struct):
    """The form of an upload, for the description of the API."""

    file: Annotated[bytes, Meta(extra_json_schema={"format": "binary", "contentEncoding": "binary"})]
    purpose: Literal["batch"]


def batch_routes(gateway: Gateway) -> list[Route]:
    """The routes of all of them."""
    api = _BatchApi(gateway)
    routes = [
        ("/v1/files", "POST", api.upload),
        ("/v1/files", "GET", api.list_files),
        ("/v1/files/{id}", "GET", api.get_file),
        ("/v1/files/{id}", "DELETE", api.delete_file),
        ("/v1/files/{id}/content", "GET", api.content),
        ("/v1/batches", "POST", api.create),
        ("/v1/batches", "GET", api.list_batches),
        ("/v1/batches/{id}", "GET", api.get_batch),
        ("/v1/batches/{id}/cancel", "POST", api.cancel),
    ]
    return [Route(path, _Endpoint(work), methods=[method]) for path, method, work in routes]


class _Endpoint:
    """An ASGI application around a piece of work; tells its errors as all endpoints do."""

    def __init__(self, work: Callable[[Request], Awaitable[Response]]):
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._work(Request(scope, receive))
        except (ClientGoneError, ClientDisconnect):
            return
        except OSError as error:
            told = f"The files cannot be used: {error.strerror or error}."
            await send_error(send, UnavailableError(told, status=503, code="storage_failed", retry_after=60))
        except Exception as error:
            await send_error(send, as_request_error(error))
        else:
            await response(scope, receive, send)


class _BatchApi:
    """What each endpoint does."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway

    @property
    def _batches(self) -> Batches:
        if self._gateway.batches is None:
            raise UnavailableError("This server keeps no files.", status=503, code="batches_unavailable")
        return self._gateway.batches

    def _owner(self, request: Request) -> str:
        """Whose files and batches the request may see."""
        return self._gateway.callers.identify(request.scope).name

    # files

    async def upload(self, request: Request) -> Response:
        store, owner = self._batches.store, self._owner(request)
        file, size = await _uploaded(request)
        try:
            name = file.filename or "file"
            kept = await asyncio.to_thread(store.files.add, owner, name, file.file, size)
        finally:
            await file.close()
        return _json(kept)

    async def list_files(self, request: Request) -> Response:
        files = self._batches.store.files.owned(self._owner(request))
        if (purpose := request.query_params.get("purpose")) is not None:
            files = [file for file in files if file.purpose == purpose]
        page, more = _page(request, files, _FILES_LISTED)
        return _json(FileList(page, more, *_ends(page)))

    async def get_file(self, request: Request) -> Response:
        return _json(self._file(request))

    async def content(self, request: Request) -> Response:
        path = self._batches.store.files.path(self._file(request))
        return FileResponse(path, media_type="application/octet-stream")

    async def delete_file(self, request: Request) -> Response:
        file, store = self._file(request), self._batches.store
        if store.uses(file.id):
            raise RequestError(
                "A batch that has not ended needs this file; cancel it first.", status=409, code="file_in_use"
            )
        await asyncio.to_thread(store.files.remove, file)
        return _json(FileDeleted(file.id))

    def _file(self, request: Request) -> FileObject:
        return self._batches.store.files.get(self._owner(request), request.path_params["id"])

    # batches

    async def create(self, request: Request) -> Response:
        body = await read_body(request.scope, request.receive, self._gateway.max_body_bytes)
        asked = decode(_batch_request, body)
        record = await self._batches.create(self._owner(request), asked)
        return _json(record.batch)

    async def list_batches(self, request: Request) -> Response:
        batches = self._batches.store.owned(self._owner(request))
        page, more = _page(request, batches, _BATCHES_LISTED)
        return _json(BatchList(page, more, *_ends(page)))

    async def get_batch(self, request: Request) -> Response:
        store = self._batches.store
        return _json(store.get(self._owner(request), request.path_params["id"]).batch)

    async def cancel(self, request: Request) -> Response:
        record = await self._batches.cancel(self._owner(request), request.path_params["id"])
        return _json(record.batch)


async def _uploaded(request: Request) -> tuple[UploadFile, int]:
    """The file of an upload and its size. Raises RequestError for a form that is wrong or too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise RequestError("Expected a form, multipart/form-data, with 'file' and 'purpose'.", status=415)
    limited = Request(request.scope, _limited(request.scope, request.receive))
    try:
        form = await limited.form(max_files=1, max_fields=16, max_part_size=_FORM_BYTES)
    except HTTPException as error:
        raise RequestError(f"The form is not valid: {error.detail}") from None
    try:
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise missing("file")
        if purpose != "batch":
            raise RequestError("Invalid 'purpose': expected batch.", "purpose")
        size = await asyncio.to_thread(file.file.seek, 0, os.SEEK_END)
        await file.seek(0)
    except BaseException:
        await form.close()
        raise
    return file, size


def _limited(scope: Scope, receive: Receive) -> Receive:
    """Receives the body and raises RequestError, 413, once there is more of it than an upload may have."""
    limit = MAX_UPLOAD_BYTES + _FORM_BYTES
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise RequestError(
                f"The file is too large: at most {MAX_UPLOAD_BYTES} bytes are accepted.",
                "file",
                status=413,
                code="request_too_large",
            )
        return message

    return counted


def _page(request: Request, items: Sequence[Listed], usual: int) -> tuple[list[Listed], bool]:
    """The items that are asked for, and whether there are more."""
    query = request.query_params
    try:
        limit = int(query.get("limit", usual))
    except ValueError:
        limit = 0
    if not 1 <= limit <= _MOST_LISTED:
        raise RequestError(f"Invalid 'limit': expected a number from 1 to {_MOST_LISTED}.", "limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError("Invalid 'order': expected asc or desc.", "order")
    ordered = list(items) if order == "desc" else list(reversed(items))
    if after := query.get("after"):
        place = next((i for i, item in enumerate(ordered) if item.id == after), None)
        if place is None:
            raise RequestError(f"Invalid 'after': there is no {after!r:.100}.", "after")
        ordered = ordered[place + 1 :]
    return ordered[:limit], len(ordered) > limit


def _ends(page: Sequence[Listed]) -> tuple[str | None, str | None]:
    return (page[0].id, page[-1].id) if page else (None, None)


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
