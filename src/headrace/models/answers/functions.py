"""The functions that a request offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Tools = Sequence[Mapping[str, Any]]
"""As OpenAI writes them: {"type": "function", "function": {"name": …, "parameters": …}}."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call."""

    name: str
    schema: Mapping[str, Any]
    """The JSON schema of its arguments, always that of an object."""
    strict: bool
    """Its calls are to match the schema even where the model is free to write text instead."""


def functions(tools: Tools) -> list[Function]:
    """The functions among the tools, whose shape the caller has checked; other tools are left out."""
    return [_function(tool["function"]) for tool in tools if "function" in tool]


def _function(function: Mapping[str, Any]) -> Function:
    schema = {"type": "object", **(function.get("parameters") or {})}
    return Function(function["name"], schema, function.get("strict") is True)
