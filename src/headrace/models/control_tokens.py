"""Keeps text that users send from being read as control tokens once a chat template has woven it in.

A rendered template is one string in which `<|im_end|>` ends a turn. Were a message to contain that literal,
its author could end the turn too. So before rendering, every literal in a string of the request, and every
part of one that could be completed, gets a marker behind its first character: a character that occurs nowhere
else in the request. Literals whole in the rendered text are the template's own; the markers are taken out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from headrace.errors import ModelFileError, RequestError

MAX_LITERAL = 96
"""The longest literal of a control token, in characters: the patterns below nest as deep."""

_Trie = dict[str, "_Trie"]

# Noncharacters first, which no text should contain; then the planes for private use.
_MARKERS = (range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900))


class MarkedText(NamedTuple):
    """Rendered text whose control literals are control tokens; its `marker` characters are to be dropped."""

    text: str
    marker: str


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


def choose_marker(*values: object) -> str:
    """A character that occurs in no string of the JSON-like values.

    Raises RequestError where a request contains every candidate, some 140 thousand of them.
    """
    strings = [text for value in values for text in _strings(value)]
    first = chr(_MARKERS[0][0])
    if not any(first in text for text in strings):
        return first
    used = set(chain.from_iterable(strings))
    for code in chain.from_iterable(_MARKERS):
        if chr(code) not in used:
            return chr(code)
    raise RequestError("the request contains every private-use character of Unicode; remove one of them")


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
