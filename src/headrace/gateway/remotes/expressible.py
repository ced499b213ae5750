"""What a request may ask of a remote model: what its API has no words for is refused, or left out.

Refused by name is what would change the answer. Left out is what would not (`priority`, `cache_salt`), and
what other models take as a hint (whether and how long a chat template has them think).
"""

from __future__ import annotations

from typing import Any

from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.remotes.errors import not_expressible

Neutral = dict[str, tuple[Any, ...]]
"""Values of a field, besides null, that ask for nothing special."""

_NOWHERE: Neutral = {
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "ignore_eos": (False,),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "documents": ([],),
    "add_generation_prompt": (True,),
}
_HINTS = {"enable_thinking", "thinking_budget"}


def refuse_unknown(name: str, request: ChatRequest | CompletionRequest, further: Neutral) -> None:
    """Raises RemoteError for the first field that neither API knows, or not this one, which has `further`."""
    for fields in (_NOWHERE, further):
        for field, neutral in fields.items():
            value = getattr(request, field, None)
            if value is not None and value not in neutral:
                raise not_expressible(name, field, "cannot be asked for this")
    if isinstance(request, ChatRequest):
        _refuse_unknown_of_chat(name, request)


def _refuse_unknown_of_chat(name: str, request: ChatRequest) -> None:
    for variable in request.chat_template_kwargs or ():
        if variable not in _HINTS:
            raise not_expressible(name, "chat_template_kwargs", f"has no {variable!r:.60}")
    asked = request.response_format
    if asked is not None and asked.type in ("regex", "grammar"):
        raise not_expressible(name, "response_format", f"cannot be held to a {asked.type}")
    for i, message in enumerate(request.messages):
        for field in ("function_call", "audio"):
            if getattr(message, field) not in (None, []):
                raise not_expressible(name, f"messages[{i}].{field}", "cannot be given this")
