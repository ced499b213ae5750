"""Takes an answer apart while it is written: text, reasoning, calls."""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.models.answer import AnswerPart, Reasoning, Text, join_parts
from headrace.models.answers.calls import CallReader
from headrace.models.answers.source import SPACE, Reading, Source
from headrace.models.answers.syntax import CallSyntax, ReasoningSyntax

_FENCE = "```"
_BARE = ("{", "[", _FENCE)
_FENCE_LANGUAGE = re.compile("[a-z_]+")
_FENCE_LANGUAGES = ("", "json", "tool_call")


class FamilyParser:
    """The parser of one answer; what it gives, joined, does not depend on where the text was cut.

    A call without its family's tag is found too, where it begins a line, perhaps in a code fence, and names
    a function that was offered: Qwen2.5-Coder writes calls so, whatever its template teaches. Whitespace
    around calls and around reasoning is not text. What begins like a call and is none becomes text.
    """

    def __init__(
        self,
        calls: CallSyntax | None,
        reasoning: ReasoningSyntax | None,
        names: Collection[str],
        thinks: bool,
    ):
        """`calls` is None where no tools were offered; `thinks` where the prompt has begun the reasoning."""
        self._syntax = calls
        self._reasoning = reasoning
        self._source = Source()
        self._out: list[AnswerPart] = []
        self._reader = CallReader(self._source, self._out, names)
        self._space = ""
        """Read, and text only if text follows."""
        self._after_call = False
        tags = [calls.tag] if calls is not None and calls.tag else []
        self._tags = tags
        self._starts = [*tags, *(start for start in _BARE if calls and not any(t[0] == start for t in tags))]
        # A tag can begin within a word; everything else begins a line.
        self._word = re.compile(rf"[^\s{''.join(re.escape(tag[0]) for tag in tags)}]+")
        self._machine = self._answer(thinks)
        next(self._machine)

    def push(self, text: str) -> list[AnswerPart]:
        """What is certain with this text, in order."""
        if text:
            self._source.feed(text)
            next(self._machine)
        return self._taken()

    def finish(self) -> list[AnswerPart]:
        """What was held back; to be called last."""
        self._source.end()
        for _ in self._machine:
            pass
        return self._taken()

    def _taken(self) -> list[AnswerPart]:
        parts = join_parts(self._out)
        self._out.clear()
        return parts

    def _answer(self, thinks: bool) -> Reading[None]:
        reasoning = self._reasoning
        if thinks and reasoning is not None:
            yield from self._reason(reasoning)
            reasoning = None
        first = True
        while True:
            self._space += yield from self._source.all_of(SPACE)
            if not (yield from self._source.peek()):
                break
            starts = self._starts if first or self._after_call or "\n" in self._space else self._tags
            if first and reasoning is not None:
                starts = [*starts, reasoning.opening]
            read, found = yield from self._source.any_of(starts)
            if found and reasoning is not None and read == reasoning.opening:
                yield from self._reason(reasoning)
                reasoning = None
                continue
            first = False
            if found:
                yield from self._calls(read)
            else:
                self._plain(read)
        if not self._after_call:
            self._text("")

    def _plain(self, read: str) -> None:
        """Text up to where something else could begin; `read` is its beginning."""
        self._text(read or self._source.take())
        self._text(self._source.run(self._word))

    def _text(self, text: str) -> None:
        if self._space or text:
            self._out.append(Text(self._space + text))
            self._space = ""
            self._after_call = False

    def _reason(self, syntax: ReasoningSyntax) -> Reading[None]:
        """Reasoning up to behind its closing tag."""
        source = self._source
        self._space = ""
        yield from source.all_of(SPACE)
        # Some models open once more what the prompt has opened.
        read, found = yield from source.any_of([syntax.opening, syntax.closing])
        if found and read == syntax.opening:
            yield from source.all_of(SPACE)
            read, found = yield from source.any_of([syntax.closing])
        plain = re.compile(rf"[^\s{re.escape(syntax.closing[0])}]+")
        space = ""
        while not found:
            if not read and (yield from source.peek()):
                read = source.run(plain)
            if not read and not (yield from source.peek()):
                return
            self._out.append(Reasoning(space + read))
            space = yield from source.all_of(SPACE)
            read, found = yield from source.any_of([syntax.closing])
        yield from source.all_of(SPACE)

    def _calls(self, start: str) -> Reading[None]:
        """Calls behind what may begin them; text where none follow."""
        reader, source, syntax = self._reader, self._source, self._syntax
        assert syntax is not None
        space = self._space
        reader.held = [start]
        closing = ""
        if start in self._tags:
            closing = syntax.closing_tag
            yield from reader.hold(SPACE)
            if syntax.layout != "object" and (yield from source.peek()) not in ("{", "["):
                called = yield from reader.named_call()
            else:
                called = yield from reader.calls(marked=True)
        elif start == _FENCE:
            closing = _FENCE
            language = yield from reader.hold(_FENCE_LANGUAGE)
            called = language in _FENCE_LANGUAGES and (yield from reader.calls(marked=False))
        else:
            called = yield from reader.calls(marked=False, opened=start)
        if called:
            self._after_call = True
            self._space = ""
            if closing:
                reader.held.append((yield from source.all_of(SPACE)))
                read, found = yield from source.any_of([closing])
                if found:
                    reader.held.clear()
                else:
                    reader.held.append(read)
        else:
            self._space = space
        rest = "".join(reader.held)
        reader.held = []
        stripped = rest.rstrip()
        if stripped.strip(",;"):
            self._text(stripped)
            rest = rest[len(stripped) :]
        self._space += rest
