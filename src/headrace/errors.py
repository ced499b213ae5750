"""The errors a user can meet. Each message says what is wrong, where, and what to do next."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all errors that are shown to a user without a traceback."""


class ModelFileError(HeadraceError):
    """A model file is broken or unsupported; the message names the key or tensor."""


class ModelNotFoundError(HeadraceError):
    """No model of that name, or no source of it could be reached."""


class DownloadError(HeadraceError):
    """A source answered, but what came is not the model."""


class TemplateError(HeadraceError):
    """A chat template is broken, loops, or writes too much."""


class CacheTooSmallError(HeadraceError):
    """The cache pool cannot hold even one request."""


class ConfigError(HeadraceError):
    """A flag, an environment variable or a line of headrace.toml is wrong; the message names it."""


class WorkerDiedError(HeadraceError):
    """The worker that computed this request ended before the request did."""


class WorkerUnavailableError(HeadraceError):
    """No worker takes requests now; the message says why."""


class RequestError(HeadraceError):
    """A request is wrong. `field` names the part of it, None where it is the whole body."""

    def __init__(self, message: str, field: str | None = None, *, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.field = field
        self.status = status
        self.code = code
