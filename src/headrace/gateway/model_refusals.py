"""Why a client may not fetch or delete a model, in the terms of a client."""

from __future__ import annotations

from headrace.errors import RequestError


def fixed_models(verb: str) -> RequestError:
    """The refusal where no client may `pull` or `delete`."""
    return RequestError(
        f"This server offers only the models it was started with; --load-on-demand lets clients {verb}.",
        "model",
        status=403,
        code=f"{verb}_not_allowed",
    )


def not_deletable(name: str, why: str) -> RequestError:
    """The refusal to delete a model that is the operator's to keep."""
    return RequestError(
        f"The model {name!r:.200} cannot be deleted: {why}.",
        "model",
        status=403,
        code="delete_not_allowed",
    )


def in_use(name: str) -> RequestError:
    """The refusal to delete a model that computes, or is being loaded."""
    return RequestError(
        f"The model {name!r:.200} is in use; delete it when its requests have ended.",
        "model",
        status=409,
        code="model_in_use",
    )
