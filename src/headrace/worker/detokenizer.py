"""From a request's tokens to the text that may be sent: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.errors import RequestError
from headrace.models.vocabulary import Vocabulary


class Delivery(NamedTuple):
    """What a push brought."""

    text: str
    """Text that nothing to come can take back."""
    stopped: bool
    """A stop string has been met: the request ends, and further tokens are ignored."""


class Detokenizer:
    """The text of one request, token by token. Work and memory are in proportion to the new text.

    Bytes of a character that is not complete wait for the rest; invalid ones become U+FFFD. Text that may be
    the beginning of a stop string waits until that is decided. The stop string that is complete first ends
    the text, the longest among those complete at once; so how tokens or pushes cut the text does not matter.
    Everything delivered together is `Vocabulary.decode` of all tokens, up to where it stopped.
    """

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = (), *, include_stop: bool = False):
        """`include_stop` ends the text with the stop string instead of before it.

        Raises RequestError on an empty stop string, which would end every text at once.
        """
        if "" in stop:
            raise RequestError("stop: an empty string cannot be a stop string", "stop")
        self._vocabulary = vocabulary
        self._matchers = [_Matcher(text) for text in dict.fromkeys(stop)]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._stopped = False
        self._may_stop = True
        self._include_stop = include_stop
        self.stop_string = ""
        """The stop string that ended the text, once one has."""

    def push(self, token_ids: Iterable[int], *, may_stop: bool = True) -> Delivery:
        """The tokens of a step; control tokens among them give no text.

        A stop string that is complete while it may not stop is text like any other.
        """
        if self._stopped:
            return Delivery("", True)
        self._may_stop = may_stop
        known = self._vocabulary
        data = b"".join(known.token_bytes(token) for token in token_ids if known.has_text(token))
        return Delivery(self._deliver(self._decoder.decode(data)), self._stopped)

    def finish(self) -> str:
        """The text still held back, which no stop string claimed; to be called last, however it ended."""
        text = self._deliver(self._decoder.decode(b"", True))
        text, self._held = text + self._held, ""
        return text

    def _deliver(self, new: str) -> str:
        """Takes new characters; returns those that are decided, and keeps the rest."""
        if not self._matchers:
            return new
        for i, char in enumerate(new):
            met = [matcher.length for matcher in self._matchers if matcher.advance(char)]
            if met and self._may_stop:
                text = self._held + new[: i + 1]
                self._held, self._matchers, self._stopped = "", [], True
                self._decoder.reset()
                end = len(text) - max(met)
                self.stop_string = text[end:]
                return text if self._include_stop else text[:end]
        text = self._held + new
        sure = len(text) - max(matcher.matched for matcher in self._matchers)
        self._held = text[sure:]
        return text[:sure]


class _Matcher:
    """Finds one string in a stream of characters (Knuth, Morris and Pratt, 1977)."""

    def __init__(self, text: str):
        self.length = len(text)
        self.matched = 0
        """Length of the longest beginning of the string with which the stream so far ends."""
        self._text = text
        self._shorter = [0] * len(text)
        for end in range(1, len(text)):
            self._shorter[end] = self._next(self._shorter[end - 1], text[end])

    def advance(self, char: str) -> bool:
        """Takes a character; True where it completes the string."""
        self.matched = self._next(self.matched, char)
        return self.matched == self.length

    def _next(self, matched: int, char: str) -> int:
        while matched and (matched == self.length or self._text[matched] != char):
            matched = self._shorter[matched - 1]
        return matched + (self._text[matched] == char)
