"""What a request needs of a model, beside writing text."""

from __future__ import annotations

from headrace.gateway.openai.requests import ChatRequest
from headrace.gateway.remotes.contents import images_in
from headrace.routing.tables import Ability

_CONSTRAINED = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


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
    if request.logprobs:
        needed.add("logprobs")
    return frozenset(needed)
