"""A model family for the tests: it thinks between <think> tags and calls tools as <call:NAME>{…}</call>."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gateway.running import RunningGateway, running
from headrace.models.answer import AnswerPart, CallArguments, CallStart, PlainFormat, Reasoning, Text

_TAG = re.compile(r"</?think>|<call:(?P<name>\w+)>|</call>")


class TaggedParser:
    """A letter at a time; only what could be a tag is held back."""

    def __init__(self) -> None:
        self._kind = "text"
        self._held = ""
        self._calls = 0

    def push(self, text: str) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        for letter in text:
            self._held += letter
            if tag := _TAG.fullmatch(self._held):
                self._held = ""
                self._kind = {"<think>": "think", "</think>": "text", "</call>": "text"}.get(tag[0], "call")
                if tag["name"]:
                    parts.append(CallStart(self._calls, tag["name"]))
                    self._calls += 1
            elif not self._held.startswith("<"):
                parts += self.finish()
        return parts

    def finish(self) -> list[AnswerPart]:
        text, self._held = self._held, ""
        if not text:
            return []
        if self._kind == "call":
            return [CallArguments(self._calls - 1, text)]
        return [Text(text) if self._kind == "text" else Reasoning(text)]


class TaggedFormat(PlainFormat):
    def parser(self, tools: Sequence[Mapping[str, Any]] | None, prompt_tail: str) -> TaggedParser:
        return TaggedParser()


@contextmanager
def answering(answer: str, **options: Any) -> Iterator[RunningGateway]:
    """A gateway whose model gives that answer."""
    with running(answer=answer, **options) as server:
        words: Any = server.gateway.models["fake"].prompter
        words.knows_tools, words.answer_format = True, TaggedFormat()
        yield server
