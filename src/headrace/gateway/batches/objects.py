"""A batch as clients see it and as it is kept."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from headrace.gateway.batches.files import FileObject

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
End = Literal["completed", "expired", "cancelled"]
ENDED: tuple[Status, ...] = ("failed", "completed", "expired", "cancelled")
Url = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class BatchRequest(Struct):
    """POST /v1/batches"""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Url
    completion_window: Literal["24h"]
    metadata: Metadata | None = None


class BatchError(Struct):
    """What is wrong with the input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(Struct):
    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(Struct):
    """A batch. Times are seconds since 1970."""

    id: str
    endpoint: Url
    input_file_id: str
    completion_window: str
    status: Status
    created_at: int
    expires_at: int
    object: Literal["batch"] = "batch"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: Metadata | None = None


class BatchRecord(Struct):
    """A batch as it is kept."""

    batch: BatchObject
    owner: str
    output_id: str
    """The id that the file of answers will have."""
    error_id: str
    end: End = "completed"
    """How it is ending, once it is finalizing."""


class FileList(Struct):
    """GET /v1/files"""

    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class BatchList(Struct):
    """GET /v1/batches"""

    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileDeleted(Struct):
    """DELETE /v1/files/{id}"""

    id: str
    deleted: Literal[True] = True
    object: Literal["file"] = "file"
