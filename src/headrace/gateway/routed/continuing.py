"""Whether another model can take up an answer in the middle, and how it is asked to."""

from __future__ import annotations

import msgspec

from headrace.gateway.openai.requests import ChatMessage, ChatRequest


def can_go_on(request: object) -> bool:
    """Whether an answer can be taken up in the middle: one text, free in its form."""
    return (
        isinstance(request, ChatRequest)
        and (request.n or 1) == 1
        and not request.logprobs
        and not request.continue_final_message
        and all(
            getattr(request, name) is None
            for name in (
                "response_format",
                "structured_outputs",
                "guided_json",
                "guided_regex",
                "guided_choice",
                "guided_grammar",
            )
        )
    )


def continuing(request: ChatRequest, name: str, text: str, used: int) -> ChatRequest:
    """The request of one who is to go on after `text`, which has used so many tokens."""
    left = {
        field: max(1, limit - used)
        for field in ("max_tokens", "max_completion_tokens")
        if (limit := getattr(request, field)) is not None
    }
    messages = [*request.messages, ChatMessage("assistant", text)] if text else request.messages
    return msgspec.structs.replace(
        request, model=name, messages=messages, continue_final_message=bool(text) or None, **left
    )
