"""How model families write calls and reasoning, and by what in the model file they are recognised."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a family of models was taught to write calls."""

    tag: str = ""
    """Begins a call, or all calls of an answer; "" where nothing does."""
    closing_tag: str = ""
    """Ends a call; "" where nothing does."""
    layout: Literal["object", "array", "named"] = "object"
    """A JSON object for each call, an array of them, or the name and then the arguments."""
    arguments_key: Literal["arguments", "parameters"] = "arguments"
    several: bool = True
    """Whether an answer may hold several calls; the templates of some families refuse that."""


HERMES = CallSyntax("<tool_call>", "</tool_call>")
"""Hermes, Qwen2.5, Qwen3, SmolLM3."""
LLAMA = CallSyntax("<|python_tag|>", arguments_key="parameters", several=False)
"""Llama 3.1 and later, which mostly leave the tag out."""
MISTRAL = CallSyntax("[TOOL_CALLS]", layout="array")
MISTRAL_NAMED = CallSyntax("[TOOL_CALLS]", layout="named")
"""Mistral since its tokenizer of version 11."""
BARE = CallSyntax()
"""Templates that take tools and teach none of the above."""

CALL_ID, ARGS = "[CALL_ID]", "[ARGS]"
"""Between name, id and arguments in the named layout."""


@dataclass(frozen=True, slots=True)
class ReasoningSyntax:
    """The tags around what a model writes for itself."""

    opening: str
    closing: str


THINK = ReasoningSyntax("<think>", "</think>")
MISTRAL_THINK = ReasoningSyntax("[THINK]", "[/THINK]")


def call_syntax(template: str, literals: Container[str]) -> CallSyntax:
    """The family's syntax by its chat template and the literals of its vocabulary.

    The template comes first: a finetune teaches its own tags on top of another family's vocabulary.
    """
    if HERMES.tag in template:
        return HERMES
    if MISTRAL.tag in template or MISTRAL.tag in literals:
        return MISTRAL_NAMED if ARGS in template or ARGS in literals else MISTRAL
    if LLAMA.tag in template or LLAMA.tag in literals:
        return LLAMA
    return BARE


def reasoning_syntax(template: str, literals: Container[str]) -> ReasoningSyntax | None:
    """The tags of the family, None for one that does not think aloud."""
    for syntax in (THINK, MISTRAL_THINK):
        tags = (syntax.opening, syntax.closing)
        if any(tag in template for tag in tags) or all(tag in literals for tag in tags):
            return syntax
    return None


ANSWER_TAGS = frozenset(
    [
        *(HERMES.tag, HERMES.closing_tag, LLAMA.tag, MISTRAL.tag, CALL_ID, ARGS),
        *(tag for syntax in (THINK, MISTRAL_THINK) for tag in (syntax.opening, syntax.closing)),
    ]
)
"""With these a model structures its answer; they are part of its text even where they are control tokens."""
