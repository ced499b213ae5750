"""Keeps text that users send from being read as control tokens once a chat template has woven it in.

A rendered template is one string in which `<|im_end|>` ends a turn. Were a message to contain that literal,
its author could end the turn too. So before rendering, every literal in a string of the request, and every
part of one that could be completed, gets a marker behind its first character: a character that occurs nowhere
else in the request. Literals whole in the rendered text are the template's own; the markers are taken out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

from headrace.errors import ModelFileError, RequestError
from headrace.models.answers.syntax import ANSWER_TAGS

MAX_LITERAL = 96
"""The longest literal of a control token, in characters: the patterns below nest as deep."""

_Trie = dict[str, "_Trie"]

# Noncharacters first, which no text should contain; then the planes for private use.
_MARKERS = (range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900))


class MarkedText(NamedTuple):
    """Rendered text whose control literals are control tokens; its `marker` characters are to be dropped."""

    text: str
    marker: str
    tail: str = ""
    """What follows the last control token, without markers: there a template may have begun the answer."""


class ControlTokens:
    """The control tokens of a vocabulary, by their literals."""

    def __init__(self, literals: Mapping[str, int]):
        """Raises ModelFileError on a literal that is empty or longer than MAX_LITERAL."""
        for literal in literals:
            if not 0 < len(literal) <= MAX_LITERAL:
                raise ModelFileError(
                    f"tokenizer.ggml.tokens: control token {literal[:MAX_LITERAL]!r} has {len(literal)} "
                    f"characters, expected 1 to {MAX_LITERAL}"
                )
        self._ids = dict(literals)
        # No literal matches nowhere: an empty set of characters.
        by_length = sorted(literals, key=len, reverse=True)
        self._literal = re.compile("(" + ("|".join(map(re.escape, by_length)) or r"[^\s\S]") + ")")
        self._start = _start_pattern(literals)

    def split(self, marked: MarkedText) -> Iterator[str | int]:
        """The text in order: plain pieces without markers, ids of control tokens (longest literal first)."""
        for i, piece in enumerate(self._literal.split(marked.text)):
            if i % 2:
                yield self._ids[piece]
            elif piece:
                yield piece.replace(marked.marker, "")

    def tail(self, marked: MarkedText) -> str:
        """What follows the last control token, but for tags of the answer itself, without markers."""
        start = 0
        for found in self._literal.finditer(marked.text):
            if found[0] not in ANSWER_TAGS:
                start = found.end()
        return marked.text[start:].replace(marked.marker, "")

    def mark(self, value: Any, marker: str) -> Any:
        """A copy of JSON-like `value` whose strings can neither contain a control literal nor begin one.

        Whatever a template trims off a string or appends to it, and even if it changes its case, the
        beginning of a literal that a user wrote stays broken.
        """
        if isinstance(value, str):
            return self._start.sub(lambda found: found[0] + marker, value)
        if isinstance(value, Mapping):
            return {self.mark(key, marker): self.mark(item, marker) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark(item, marker) for item in value]
        return value


def choose_markers(*values: object) -> tuple[str, str]:
    """Two characters that occur in no string of the JSON-like values.

    Raises RequestError where a request contains every candidate, some 140 thousand of them.
    """
    strings = [text for value in values for text in _strings(value)]
    first, second = (chr(code) for code in _MARKERS[0][:2])
    if not any(first in text or second in text for text in strings):
        return first, second
    used = set(chain.from_iterable(strings))
    free = (chr(code) for code in chain.from_iterable(_MARKERS) if chr(code) not in used)
    found = list(islice(free, 2))
    if len(found) < 2:
        raise RequestError("the request contains every private-use character of Unicode; remove one of them")
    return found[0], found[1]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _start_pattern(literals: Iterable[str]) -> re.Pattern[str]:
    """Matches the first character of a whole literal, or of a part of one where more could be joined to it.

    That is at the end of the string, before a space, which a template may trim, and before what begins
    another literal or tag, which it may cut out. Upper and lower case are equal: templates can change them.
    """
    trie: _Trie = {}
    for literal in literals:
        node = trie
        for char in literal:
            node = node.setdefault(char, {})
        node[""] = {}
    borders = "".join(map(re.escape, {"<", "[", "{", *trie}))
    border = rf"\Z|[\s{borders}]"
    heads = [f"{re.escape(char)}(?={_rest(node, border)})" for char, node in trie.items()]
    return re.compile("|".join(heads) or r"[^\s\S]", re.IGNORECASE)


def _rest(node: _Trie, border: str) -> str:
    """A pattern for what may follow the part of a literal that leads to `node`."""
    if "" in node:
        return ""
    following = [re.escape(char) + _rest(child, border) for char, child in node.items()]
    return "(?:" + "|".join([*following, border]) + ")"
