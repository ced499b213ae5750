"""What a remote's answer consists of so far, choice by choice: checked, counted, and bounded."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.gateway.answering import Piece
from headrace.gateway.remotes.errors import RemoteError, garbage
from headrace.gateway.remotes.in_order import InOrder
from headrace.gateway.remotes.logprobs import Vocabulary
from headrace.models.answer import AnswerPart, CallArguments, CallStart, Reasoning, Text
from headrace.worker.messages import TokenEvent

MAX_CALLS = 128
_LONGEST_TOKEN = 32
"""Characters of answer for each token that was allowed; text has about four."""
_SLACK = 4096


@dataclass(slots=True)
class _Choice:
    """One of the answers."""

    calls: dict[object, int] = field(default_factory=dict)
    """By the remote's name for a call, its number."""
    order: InOrder = field(default_factory=InOrder)
    reason: str | None = None


class Parts:
    """Turns what a remote says into pieces. Each method returns what is to be delivered of it."""

    def __init__(
        self,
        name: str,
        answer_id: str,
        choices: int,
        most_tokens: int,
        vocabulary: Vocabulary | None = None,
    ):
        """`name` is the remote's; it may answer with `most_tokens` for each choice.

        `vocabulary` takes the tokens where log-probabilities are asked for.
        """
        self._name = name
        self.vocabulary = vocabulary
        self._id = answer_id
        self._choices = [_Choice() for _ in range(choices)]
        self._most = choices * (most_tokens * _LONGEST_TOKEN + _SLACK)
        self.characters = 0
        self.size = 0
        """Bytes of UTF-8 of all text so far, at most; no answer has more tokens that can be seen."""
        self.calls = 0
        self.finish_reasons: list[str] = []
        """Of the choices that have ended, in that order."""

    @property
    def ended(self) -> bool:
        """Every choice has."""
        return len(self.finish_reasons) == len(self._choices)

    def text(self, choice: int, text: str) -> Piece:
        """Text for the reader."""
        self._count(choice, text)
        return self._piece(choice, Text(text))

    def reasoning(self, choice: int, text: str) -> Piece:
        """Text of the model's own."""
        self._count(choice, text)
        return self._piece(choice, Reasoning(text))

    def call(self, choice: int, key: object, function: str) -> Piece:
        """A call of a function begins; `key` is the remote's name for it."""
        self._count(choice, function)
        calls = self._choices[choice].calls
        if not function or len(calls) == MAX_CALLS:
            raise self._garbage("a call of a tool without a name" if not function else "too many calls")
        number = calls[key] = len(calls)
        self.calls += 1
        return self._piece(choice, CallStart(number, function))

    def knows_call(self, choice: int, key: object) -> bool:
        """Whether the call has begun."""
        return 0 <= choice < len(self._choices) and key in self._choices[choice].calls

    def arguments(self, choice: int, key: object, text: str) -> Piece:
        """A piece of a call's arguments."""
        self._count(choice, text)
        number = self._choices[choice].calls.get(key)
        if number is None:
            raise self._garbage("arguments of a call that has not begun")
        return self._piece(choice, CallArguments(number, text))

    def silence(self, choice: int) -> Piece:
        """Nothing to be read, such as a token that is a part of a character."""
        self._count(choice, "")
        return choice, (), TokenEvent(self._id, "", []), None

    def end(self, choice: int, reason: str, stop_string: str = "") -> Piece:
        """The choice has ended, for OpenAI's reason. Calls without arguments get an empty object."""
        self._count(choice, "")
        state = self._choices[choice]
        if reason == "stop" and state.calls:
            reason = "tool_calls"
        state.reason = reason
        self.finish_reasons.append(reason)
        parts = state.order.end()
        event = TokenEvent(self._id, _texts(parts), [], reason, stop_string=stop_string)
        return choice, parts, event, reason

    def _piece(self, choice: int, part: AnswerPart) -> Piece:
        """What may be delivered now that the part has come."""
        try:
            parts = self._choices[choice].order.add(part)
        except ValueError:
            raise self._garbage("more arguments of a call that had ended") from None
        return choice, parts, TokenEvent(self._id, _texts(parts), []), None

    def _count(self, choice: int, text: str) -> None:
        if not 0 <= choice < len(self._choices):
            raise self._garbage(f"a choice that was not asked for, number {choice}")
        if self._choices[choice].reason is not None:
            raise self._garbage("more of an answer that had ended")
        self.characters += len(text)
        self.size += len(text) if text.isascii() else 4 * len(text)
        if self.characters > self._most:
            raise self._garbage("an answer that is far longer than was allowed")

    def _garbage(self, what: str) -> RemoteError:
        return garbage(self._name, what)


def _texts(parts: list[AnswerPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))
