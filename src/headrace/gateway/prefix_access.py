"""Which clients may see what prompts have in common, or change workers; and reports for those that ask."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.types import Scope

from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.prefix_report import PrefixReport, explain
from headrace.gateway.served import ServedModel
from headrace.gateway.state import Gateway

EXPLAIN_HEADER = b"x-headrace-explain"
"""With the value "prefix" it asks for a report in the answer's usage."""
_FORWARDED = frozenset([b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"])


def may_see_prefixes(gateway: Gateway, scope: Scope) -> bool:
    """Whether a client may see text of cached prompts, and pin some.

    Where the operator has not said: clients on this very machine may, unless keys tell several users apart. A
    proxy on it is none of them, as far as it can be told: it says so in a header, or speaks HTTP/1.0 as nginx
    does unless told otherwise.
    """
    if gateway.expose_prefixes is not None:
        return gateway.expose_prefixes
    return _is_on_this_machine(gateway, scope)


def may_operate(gateway: Gateway, scope: Scope) -> bool:
    """Whether a client may change the workers: with a key that says so, or on the machine of an open server.

    A web page is none, though a browser there sends what it asks.
    """
    if not gateway.callers.open:
        return gateway.callers.identify(scope).allowed.operator
    has_origin = any(name == b"origin" for name, _ in scope["headers"])
    return not has_origin and _is_on_this_machine(gateway, scope)


def _is_on_this_machine(gateway: Gateway, scope: Scope) -> bool:
    if (
        not gateway.callers.open
        or scope["http_version"] == "1.0"
        or any(name in _FORWARDED for name, _ in scope["headers"])
    ):
        return False
    try:
        return ipaddress.ip_address((scope.get("client") or ("",))[0]).is_loopback
    except ValueError:
        return False


def asks_to_explain(scope: Scope) -> bool:
    """Whether the request asks for a report with its answer."""
    return any(name == EXPLAIN_HEADER and value == b"prefix" for name, value in scope["headers"])


async def explain_all(
    gateway: Gateway,
    scope: Scope,
    model: ServedModel,
    request: ChatRequest | CompletionRequest,
    prompts: Sequence[Sequence[int]],
) -> list[PrefixReport]:
    """A report on each of the request's prompts, with what this client may see. Raises as `explain`.

    To be asked before the request runs, which caches its prompts. Who knows a salt may see what is behind it.
    """
    salt = request.cache_salt or ""
    messages = request.messages if isinstance(request, ChatRequest) else ()
    show = bool(salt) or may_see_prefixes(gateway, scope)
    return [
        await explain(model, prompt, salt=salt, show_cached=show, messages=messages) for prompt in prompts
    ]
