"""Grammars of calls, in llguidance's dialect of Lark (github.com/guidance-ai/llguidance, docs/syntax.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.models.answers.functions import Function
from headrace.models.answers.syntax import ARGS, CallSyntax, ReasoningSyntax

# What templates write with `tojson`, so that is what models know; no room for endless whitespace.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_OPEN_SCHEMA_KEYS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "$ref", "if")
_COMBINING_KEYS = ("allOf", "anyOf", "oneOf")


class CallGrammar:
    """Writes the grammars of one family's answers."""

    def __init__(self, calls: CallSyntax, reasoning: ReasoningSyntax | None, control_ids: Mapping[str, int]):
        self._calls = calls
        self._reasoning = reasoning
        self._control_ids = control_ids

    def forced(self, functions: Sequence[Function], *, several: bool, thinks: bool) -> str:
        """An answer of one call, or of one and more."""
        body = _rule("body", [self._body(function) for function in functions])
        calls = self._calls
        if calls.layout == "array":
            more = ' (", " body)*' if several else ""
            answer = f'{self._tag(calls.tag)} " "? "[" body{more} "]"'
            return self.around(f"answer: {answer}\n{body}", thinks=thinks)
        separator = "" if calls.layout == "named" else '"\\n" '
        more = f" ({separator}call)*" if several else ""
        return self.around(f"answer: call{more}\n{self._call()}\n{body}", thinks=thinks)

    def free(self, functions: Sequence[Function], *, thinks: bool) -> str:
        """Any text, but what follows the family's tag must be a call. Reasoning is such text too."""
        tag = self._tag(self._calls.tag)
        head = f"head: ANY {tag}" if self._calls.tag in self._control_ids else f"head[lazy]: ANY {tag}"
        bodies = _rule("body", [self._body(function) for function in functions])
        array = '" "? "[" body (", " body)* "]"'
        after = array if self._calls.layout == "array" else self._after_tag()
        return "\n".join(
            ["%llguidance {}", "start: (head after)* ANY", head, f"after: {after}", bodies, _ANY, ""]
        )

    def around(self, rules: str, *, thinks: bool) -> str:
        """The grammar whose rule `answer` comes behind reasoning, which must come first where one thinks."""
        if self._reasoning is None:
            return "\n".join(["%llguidance {}", "start: answer", rules, ""])
        opening, closing = self._tag(self._reasoning.opening), self._tag(self._reasoning.closing)
        closed = f"ANY {closing}"
        lazy = "" if self._reasoning.closing in self._control_ids else "[lazy]"
        start = "start: thought GAP answer" if thinks else f"start: ({opening} thought GAP)? answer"
        return "\n".join(
            ["%llguidance {}", start, f"thought{lazy}: {closed}", "GAP: /\\n{0,2}/", _ANY, rules, ""]
        )

    def _call(self) -> str:
        calls = self._calls
        # Llama's tag stands before code for its interpreter, and mostly not before calls.
        if calls.layout == "object" and not calls.closing_tag:
            return "call: body"
        return f"call: {self._tag(calls.tag)} {self._after_tag()}"

    def _after_tag(self) -> str:
        if self._calls.closing_tag:
            return f'"\\n" body "\\n" {self._tag(self._calls.closing_tag)}'
        return "body"

    def _body(self, function: Function) -> str:
        schema = "%json " + json.dumps(_schema(function))
        if self._calls.layout == "named":
            return f"{_text(function.name)} {self._tag(ARGS)} {schema}"
        head = f'{{"name": {json.dumps(function.name)}, "{self._calls.arguments_key}": '
        return f'{_text(head)} {schema} "}}"'

    def _tag(self, literal: str) -> str:
        token = self._control_ids.get(literal)
        return _text(literal) if token is None else f"<[{token}]>"


_ANY = "ANY: /(.|\\n)*/"


def _rule(name: str, alternatives: Sequence[str]) -> str:
    return f"{name}: " + "\n  | ".join(alternatives)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _schema(function: Function) -> dict[str, Any]:
    """The schema as the grammar wants it.

    A model that is forced to write the listed arguments is not to invent others, unless the schema says
    more about them. What llguidance does not support is ignored, but in functions that are strict.
    """
    schema = dict(function.schema)
    if schema.get("properties") and not any(k in schema for k in (*_OPEN_SCHEMA_KEYS, *_COMBINING_KEYS)):
        schema["additionalProperties"] = False
    schema["x-guidance"] = {**_JSON_STYLE, "lenient": not function.strict}
    return schema
