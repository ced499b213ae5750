"""Puts the parts of a remote's answer in an order that every dialect can tell: one call after the other.

A remote may begin a second call before the arguments of the first are complete, or send none at all where a
function takes none. What comes behind a call that is not complete is held back until it is.
"""

from __future__ import annotations

import msgspec

from headrace.models.answer import AnswerPart, CallArguments, CallStart

_check_json = msgspec.json.Decoder(msgspec.Raw).decode


class InOrder:
    """The parts of one choice, whose calls are numbered as they begin."""

    def __init__(self) -> None:
        self._last = -1
        """The call that was delivered last."""
        self._open = False
        """Nothing was delivered behind it yet."""
        self._arguments: list[str] = []
        """The last call's."""
        self._held: list[AnswerPart] = []

    def add(self, part: AnswerPart) -> list[AnswerPart]:
        """What may be delivered now. Raises ValueError for arguments behind those that were complete."""
        if isinstance(part, CallArguments) and part.index <= self._last:
            if part.index < self._last or not self._open:
                raise ValueError(part)
            self._arguments.append(part.text)
            return [part, *self._release()]
        self._held.append(part)
        return self._release()

    def end(self) -> list[AnswerPart]:
        """All that was held back. A call without arguments gets an empty object."""
        parts = self._close()
        while self._held:
            parts += [*self._deliver(self._held.pop(0)), *self._close()]
        return parts

    def _release(self) -> list[AnswerPart]:
        """What was held back, up to a call that is not complete."""
        parts: list[AnswerPart] = []
        while self._held and not (self._open and not self._complete()):
            parts += self._deliver(self._held.pop(0))
        return parts

    def _deliver(self, part: AnswerPart) -> list[AnswerPart]:
        """The part; if it begins a call, with those of its arguments that were held back."""
        self._open = isinstance(part, CallStart)
        if not isinstance(part, CallStart):
            return [part]
        theirs: list[AnswerPart] = []
        others: list[AnswerPart] = []
        for each in self._held:
            is_its = isinstance(each, CallArguments) and each.index == part.index
            (theirs if is_its else others).append(each)
        self._held, self._last = others, part.index
        self._arguments = [each.text for each in theirs if isinstance(each, CallArguments)]
        return [part, *theirs]

    def _close(self) -> list[AnswerPart]:
        bare = self._open and not self._arguments
        self._open = False
        return [CallArguments(self._last, "{}")] if bare else []

    def _complete(self) -> bool:
        """Whether the last call's arguments are all there: one JSON value that may not go on."""
        if not self._arguments or not self._arguments[-1].rstrip().endswith("}"):
            return False
        try:
            _check_json("".join(self._arguments))
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return False
        return True
