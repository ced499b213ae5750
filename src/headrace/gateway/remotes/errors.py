"""What can go wrong with a remote model, in words for the client who asked."""

from __future__ import annotations

from headrace.gateway.errors import UnavailableError


class RemoteError(UnavailableError):
    """A remote model did not answer, or not as it must. The message never holds its key or its URL."""

    def __init__(
        self,
        message: str,
        field: str | None = None,
        *,
        status: int = 503,
        code: str,
        elsewhere: bool = True,
        broken: bool = True,
        retry_after: int | None = None,
    ):
        super().__init__(message, status=status, code=code, retry_after=retry_after)
        self.field = field
        self.elsewhere = elsewhere
        """Another model may well serve the request."""
        self.broken = broken
        """The remote is at fault: counts against it."""
        self.began = False
        """Parts of the answer had come before."""


def unreachable(name: str, why: str) -> RemoteError:
    """No connection came about."""
    return RemoteError(f"The remote model '{name}' cannot be reached: {why}.", code="remote_unreachable")


def timed_out(name: str, what: str, seconds: float) -> RemoteError:
    """It took longer than its table allows."""
    return RemoteError(
        f"The remote model '{name}' {what} within {seconds:g} s.", status=504, code="remote_timeout"
    )


def cut_off(name: str) -> RemoteError:
    """The connection ended before the answer did."""
    return RemoteError(f"The remote model '{name}' broke off before its answer ended.", code="remote_cut_off")


def garbage(name: str, what: str) -> RemoteError:
    """It answered something that its API knows not."""
    return RemoteError(f"The remote model '{name}' sent {what}.", code="remote_garbage")


def chats_only(name: str) -> RemoteError:
    """The request is for a plain continuation, and the remote serves none."""
    return _not_served(name, "takes chats only: use /v1/chat/completions")


def no_embeddings(name: str) -> RemoteError:
    """The remote serves none."""
    return _not_served(name, "gives no embeddings there")


def _not_served(name: str, why: str) -> RemoteError:
    return RemoteError(
        f"The model '{name}' is served elsewhere, and {why}.",
        "model",
        status=400,
        code="unsupported_value",
        broken=False,
    )


def not_expressible(name: str, field: str, why: str) -> RemoteError:
    """The request asks for what the remote's API has no words for."""
    return RemoteError(
        f"'{field}': the remote model '{name}' {why}.",
        field,
        status=400,
        code="unsupported_value",
        broken=False,
    )
