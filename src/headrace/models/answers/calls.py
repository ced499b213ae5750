"""Reads the calls of tools behind the sign that begins them."""

from __future__ import annotations

import json
import re
from collections.abc import Container

from headrace.models.answer import AnswerPart, CallArguments, CallStart
from headrace.models.answers.json_scanner import JsonScanner
from headrace.models.answers.source import SPACE, Reading, Source
from headrace.models.answers.syntax import ARGS, CALL_ID

_SEPARATORS = re.compile(r"[\s,;]+")
_CLOSERS = re.compile(r"[\s,;}\]]+")
_ATOM = re.compile(r"[^\s,:{}\[\]\"]+")
_CALL_ID = re.compile(r"[^\s\[{]+")
_NAME = _CALL_ID
_ARGUMENTS = ("arguments", "parameters")
_OTHER_KEYS = ("type", "id")
"""What a call without a tag may say besides its name and arguments."""


class CallReader:
    """Reads calls from a source and writes their parts to `out`.

    A call begins for the reader of the answer once its name is known and its arguments have begun: then
    it can no longer turn out to be anything else. Until then `held` has all that was read, to become text.
    """

    def __init__(self, source: Source, out: list[AnswerPart], names: Container[str]):
        """`names` are those of the functions that were offered."""
        self.held: list[str] = []
        """What was read and no call has claimed."""
        self.count = 0
        """Calls begun so far."""
        self._source = source
        self._out = out
        self._names = names

    def calls(self, marked: bool, opened: str = "") -> Reading[bool]:
        """Reads one call or several, JSON objects one after the other or in an array. Whether there was any.

        Calls that no tag marks must name a function that was offered, for they may be any other JSON. A
        tag says that it is a call, and one of an unknown function is better answered than shown as text.
        `opened` is the brace or bracket that has been read.
        """
        before = self.count
        if not opened:
            yield from self.hold(SPACE)
            if (yield from self._source.peek()) in ("{", "["):
                opened = self._take()
        in_array = opened == "["
        if in_array:
            yield from self.hold(SPACE)
            opened = self._take() if (yield from self._source.peek()) == "{" else ""
        while opened:
            if not (yield from self._object(marked)):
                return self.count > before
            if marked or in_array:
                # Small models close one brace too many, which says nothing.
                yield from self._source.all_of(_CLOSERS)
            else:
                yield from self.hold(_SEPARATORS)
            opened = self._take() if (yield from self._source.peek()) == "{" else ""
        return self.count > before

    def named_call(self) -> Reading[bool]:
        """Reads a name and the arguments that follow it, perhaps behind an id. Whether that was a call."""
        name = yield from self.hold(_NAME)
        tag, found = yield from self._source.any_of([CALL_ID, ARGS])
        self.held.append(tag)
        if found and tag == CALL_ID:
            yield from self.hold(SPACE)
            yield from self.hold(_CALL_ID)
            tag, _ = yield from self._source.any_of([ARGS])
            self.held.append(tag)
        yield from self.hold(SPACE)
        if not name or (yield from self._source.peek()) != "{":
            return False
        self._begin(name)
        yield from self._stream_arguments()
        return True

    def _object(self, marked: bool) -> Reading[bool]:
        """Reads one call's object behind its brace, its keys in any order. False where it is none."""
        source = self._source
        name: str | None = None
        early: str | None = None
        begun = False
        while True:
            yield from self.hold(_SEPARATORS)
            if (yield from source.peek()) == "}":
                self._take()
                break
            key = yield from self._string()
            if key is None or not (yield from self._colon()):
                return begun
            if key == "name" and name is None:
                name = yield from self._string()
                if name is None or not (marked or name in self._names):
                    return begun
            elif key in _ARGUMENTS and not begun and early is None:
                if name is not None and (yield from source.peek()) == "{":
                    self._begin(name)
                    begun = True
                    yield from self._stream_arguments()
                else:
                    early = yield from self._value()
            elif marked or key in _OTHER_KEYS:
                yield from self._value()
            else:
                return begun
            if name is not None and early is not None and not begun:
                self._begin(name)
                begun = True
                self._out.append(CallArguments(self.count - 1, _arguments(early)))
        if name is not None and not begun and marked:
            self._begin(name)
            begun = True
            self._out.append(CallArguments(self.count - 1, "{}"))
        self.held = [] if begun else self.held
        return begun

    def _begin(self, name: str) -> None:
        self._out.append(CallStart(self.count, name))
        self.count += 1
        self.held = []

    def _stream_arguments(self) -> Reading[None]:
        scanner = JsonScanner()
        while not scanner.ended and (yield from self._source.peek()):
            self._out.append(CallArguments(self.count - 1, self._source.scan(scanner)))

    def _value(self) -> Reading[str]:
        """Reads any JSON value, whole."""
        char = yield from self._source.peek()
        if not char or char not in '{["':
            return (yield from self.hold(_ATOM))
        scanner, pieces = JsonScanner(), []
        while not scanner.ended and (yield from self._source.peek()):
            pieces.append(self._source.scan(scanner))
        self.held += pieces
        return "".join(pieces)

    def _string(self) -> Reading[str | None]:
        """Reads a JSON string, None where there is none. A line break ends the attempt."""
        source = self._source
        if (yield from source.peek()) != '"':
            return None
        scanner, text = JsonScanner(), ""
        while not scanner.ended:
            char = yield from source.peek()
            if not char or char < " ":
                return None
            piece = source.scan_one(scanner)
            self.held.append(piece)
            text += piece
        try:
            value: str = json.loads(text)
        except ValueError:
            return None
        return value

    def _colon(self) -> Reading[bool]:
        yield from self.hold(SPACE)
        if (yield from self._source.peek()) != ":":
            return False
        self._take()
        yield from self.hold(SPACE)
        return True

    def _take(self) -> str:
        self.held.append(self._source.take())
        return self.held[-1]

    def hold(self, characters: re.Pattern[str]) -> Reading[str]:
        """Reads all that match."""
        text = yield from self._source.all_of(characters)
        self.held.append(text)
        return text


def _arguments(value: str) -> str:
    """The arguments object that a value stands for: some models write its JSON text as a string, or null."""
    if not value.startswith('"'):
        return value if value.startswith("{") else "{}"
    try:
        text: str = json.loads(value)
    except ValueError:
        return value
    return text if text.lstrip().startswith("{") else value
