"""What a request needs of a model, beside writing text."""

from __future__ import annotations

from headrace.gateway.openai.requests import ChatRequest, CompletionRequest
from headrace.gateway.remotes.contents import images_in
from headrace.routing.tables import Ability

_CONSTRAINED = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def asks_logprobs(request: ChatRequest | CompletionRequest) -> bool:
    """Whether it asks for log-probabilities; of a text completion 0 asks for those of its tokens alone."""
    return bool(request.logprobs) if isinstance(request, ChatRequest) else request.logprobs is not None


def abilities_needed(request: ChatRequest) -> frozenset[Ability]:
    """Of those that tables name; JSON stands for every form that an answer may be held to."""
    needed: set[Ability] = set()
    if request.tools and request.tool_choice != "none":
        needed.add("tools")
    if next(images_in(request.messages), None) is not None:
        needed.add("vision")
    form = request.response_format
    if form is not None and form.type != "text":
        needed.add("json")
    if any(getattr(request, field) is not None for field in _CONSTRAINED):
        needed.add("json")
    if asks_logprobs(request):
        needed.add("logprobs")
    return frozenset(needed)
