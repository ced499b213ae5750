"""How much of a prompt is cached, and where it leaves what is cached, in words for its author."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.gateway.openai.requests import ChatMessage
from headrace.gateway.served import Prompter, ServedModel

_BEFORE_TOKENS = 24
_AFTER_TOKENS = 24
_SHOWN = 160
"""Characters of a text that are shown at most."""


class Divergence(Struct):
    """Where a prompt leaves the nearest cached one, which goes on in another way."""

    position: int
    """The first token that is not cached; positions count from 0."""
    token_id: int
    """The prompt's token there."""
    token: str
    before: str
    """The prompt's text up to there."""
    sent: str
    """The prompt's text from there on."""
    cached: str | None
    """The cached text from there on; None where this client may not see it."""
    message: int | None = None
    """Index of the message in or before which it happens, where that can be told."""


class PrefixReport(Struct):
    """What of a prompt need not be computed."""

    prompt_tokens: int
    cached_tokens: int
    """As a request's usage would tell: the last token of a prompt is computed in any case."""
    cached_share: float
    divergence: Divergence | None = None
    """None where no cached prompt goes on otherwise: this one is new from there on, or all cached."""


async def explain(
    model: ServedModel,
    tokens: Sequence[int],
    *,
    salt: str = "",
    show_cached: bool = False,
    messages: Sequence[ChatMessage] = (),
) -> PrefixReport:
    """What a request with this prompt would find now; it changes nothing.

    Args:
        model: in use.
        tokens: of the prompt, at least one.
        salt: the request's `cache_salt`.
        show_cached: whether the client may see text of other prompts in the same namespace.
        messages: of the conversation that the prompt was made of, if it was, to say which one differs.

    Raises:
        HeadraceError: no worker answers.
    """
    told = await model.engine.prefixes.explain(tokens, salt)
    cached = min(told.cached, len(tokens) - 1)
    report = PrefixReport(len(tokens), cached, round(cached / len(tokens), 4))
    if told.continuation:
        at, prompter = told.cached, model.prompter
        report.divergence = Divergence(
            position=at,
            token_id=tokens[at],
            token=text_of(prompter, tokens[at : at + 1]),
            before=text_of(prompter, tokens[max(0, at - _BEFORE_TOKENS) : at]).lstrip("\ufffd")[-_SHOWN:],
            sent=text_of(prompter, tokens[at : at + _AFTER_TOKENS])[:_SHOWN],
            cached=text_of(prompter, told.continuation)[:_SHOWN] if show_cached else None,
            message=_message_at(text_of(prompter, tokens), len(text_of(prompter, tokens[:at])), messages),
        )
    return report


def text_of(prompter: Prompter, tokens: Sequence[int]) -> str:
    """The tokens as text; a character that is cut by an end of them becomes U+FFFD."""
    return b"".join(map(prompter.token_bytes, tokens)).decode("utf-8", "replace")


def shortened(text: str, limit: int = 240) -> str:
    """A long text's beginning and end."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 3]} … {text[-tail:]}"


def _message_at(text: str, position: int, messages: Sequence[ChatMessage]) -> int | None:
    """The first message that ends behind the position; those that the template changed are passed over."""
    start = 0
    for index, message in enumerate(messages):
        content = _content(message).strip()
        found = text.find(content, start)
        if not content or found < 0:
            continue
        start = found + len(content)
        if position < start:
            return index
    return None


def _content(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text or "" for part in message.content or [])
