"""From what a request says its answer must look like to a constraint for the worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors import RequestError
from headrace.gateway.errors import missing
from headrace.gateway.openai.requests import ChatRequest, GenerationRequest
from headrace.gateway.served import ServedModel
from headrace.worker.constraints import schema_in_lark
from headrace.worker.messages import Constraint

_ANY_OBJECT = Constraint("json_schema", '{"type":"object"}')
Asked = tuple[str, Constraint]
"""The field that asked, for error messages, and what it asked for."""


def constraint_of(
    model: ServedModel, request: GenerationRequest, tools: Sequence[dict[str, Any]], tail: str
) -> Asked | None:
    """What the answer must match, None where anything will do. `tail` is the end of the prompt's text.

    Raises RequestError where the request says it in a way that makes no sense, or in two ways at once.
    """
    asked = [*_response_format(request), *_structured_outputs(request), *_guided(request)]
    if isinstance(request, ChatRequest):
        asked = [(field, _after_reasoning(model, constraint, tail)) for field, constraint in asked]
        if (forced := _tool_call(model, request, tools, tail)) is not None:
            asked.append(forced)
    if len(asked) > 1:
        (first, _), (second, _) = asked[:2]
        raise RequestError(f"'{first}' and '{second}' both constrain the answer; use one of them.", second)
    return asked[0] if asked else None


def _response_format(request: GenerationRequest) -> list[Asked]:
    asked = request.response_format
    if asked is None or asked.type == "text":
        return []
    name = "response_format"
    if asked.type == "json_object":
        return [(name, _ANY_OBJECT)]
    if asked.type == "json_schema":
        if asked.json_schema is None or asked.json_schema.schema is None:
            raise missing(f"{name}.json_schema" + ("" if asked.json_schema is None else ".schema"))
        return [(f"{name}.json_schema.schema", _json_schema(asked.json_schema.schema))]
    text = asked.regex if asked.type == "regex" else asked.grammar
    if text is None:
        raise missing(f"{name}.{asked.type}")
    return [(f"{name}.{asked.type}", Constraint("regex" if asked.type == "regex" else "lark", text))]


def _structured_outputs(request: GenerationRequest) -> list[Asked]:
    asked = request.structured_outputs
    if asked is None:
        return []
    found = _of(
        "structured_outputs.{}",
        json=asked.json,
        regex=asked.regex,
        choice=asked.choice,
        grammar=asked.grammar,
    )
    if asked.json_object:
        found.append(("structured_outputs.json_object", _ANY_OBJECT))
    return found


def _guided(request: GenerationRequest) -> list[Asked]:
    return _of(
        "guided_{}",
        json=request.guided_json,
        regex=request.guided_regex,
        choice=request.guided_choice,
        grammar=request.guided_grammar,
    )


def _of(
    field: str,
    *,
    json: dict[str, Any] | str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
) -> list[Asked]:
    asked = []
    if json is not None:
        schema = Constraint("json_schema", json) if isinstance(json, str) else _json_schema(json)
        asked.append((field.format("json"), schema))
    if regex is not None:
        asked.append((field.format("regex"), Constraint("regex", regex)))
    if choice is not None:
        asked.append((field.format("choice"), Constraint("regex", "|".join(map(re.escape, choice)))))
    if grammar is not None:
        asked.append((field.format("grammar"), Constraint("lark", grammar)))
    return asked


def _json_schema(schema: object) -> Constraint:
    return Constraint("json_schema", msgspec.json.encode(schema).decode())


def _after_reasoning(model: ServedModel, constraint: Constraint, tail: str) -> Constraint:
    """The constraint; where the model thinks, one that leaves it its reasoning before the JSON."""
    if constraint.kind != "json_schema":
        return constraint
    grammar = model.prompter.answer_format.after_reasoning(f"answer: {schema_in_lark(constraint.text)}", tail)
    return constraint if grammar is None else Constraint("lark", grammar)


def _tool_call(
    model: ServedModel, request: ChatRequest, tools: Sequence[dict[str, Any]], tail: str
) -> Asked | None:
    if not tools:
        return None
    choice: str | dict[str, Any] = "auto"
    if request.tool_choice is not None:
        choice = msgspec.to_builtins(request.tool_choice)
    parallel = request.parallel_tool_calls is not False
    grammar = model.prompter.answer_format.grammar(tools, choice, parallel, tail)
    return None if grammar is None else ("tool_choice", Constraint("lark", grammar))
