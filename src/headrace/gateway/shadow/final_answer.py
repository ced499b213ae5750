"""What an answer comes down to: a number, a letter, a few words, code; or its text where it is just text."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

Kind = Literal["marked", "code", "short", "number", "text"]

_LONGEST = 20_000
"""Characters that are looked at, from the end."""

_THOUGHTS = re.compile(r"<think(?:ing)?>")
_THOUGHTS_END = re.compile(r"</think(?:ing)?>")
_HASHES = re.compile(r"####[ \t]*([^\n]+)\Z")
_BOXED = "\\boxed{"
_SAID = re.compile(r"\b(?:final answer|answer)(?: is:?|:)[ \t*]*([^\n]{1,80})", re.IGNORECASE)
_FENCED = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_OPTION = re.compile(r"\(?([A-Z])\)?(?:[.):]?|[.):]\s.*)", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_AMOUNT = re.compile(r"[$€£]?\s*(-?[\d,]*\.?\d+)\s*(%|[a-z]{1,12})?\.?", re.IGNORECASE)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SHORT = 6
"""Words of a short answer."""
_LONGEST_NUMBER = 40
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)


@dataclass(frozen=True)
class FinalAnswer:
    """Its kind, and what is compared."""

    kind: Kind
    text: str


def final_answer(answer: str, numeric: bool = False) -> FinalAnswer:
    """What is compared of an answer. `numeric`: the question is one after a number.

    The first that is there counts: what stands after ####, in \\boxed{} or after "the answer is"; a block of
    code; all of a short answer; of a longer one to a numeric question its last number; else all.
    """
    text = _THOUGHTS.split(_THOUGHTS_END.split(answer[-_LONGEST:])[-1])[0].strip()
    if (marked := _marked(text)) is not None:
        return FinalAnswer("marked", normal(marked))
    if blocks := _FENCED.findall(text):
        return FinalAnswer("code", "\n".join(map(_normal_code, blocks)))
    if len(text.split()) <= _SHORT:
        return FinalAnswer("short", normal(text))
    if numeric and (numbers := _NUMBER.findall(text)):
        return FinalAnswer("number", _number(numbers[-1]) or numbers[-1])
    return FinalAnswer("text", text.casefold())


def normal(text: str) -> str:
    """A short answer without what does not matter: a number, the letter of an option, or plain words."""
    text = text.strip().strip("*_`$\"'").strip()
    text = re.sub(r"\\(?:text|mathrm|mathbf)\{([^}]*)\}", r"\1", text)
    if (option := _OPTION.fullmatch(text)) is not None:
        return option[1].casefold()
    if (number := _number(text)) is not None:
        return number
    words = re.sub(r"[^\w\s./%+-]", " ", text.casefold())
    return " ".join(_ARTICLES.sub(" ", words).split()).rstrip(".")


def _marked(text: str) -> str | None:
    if (hashes := _HASHES.search(text)) is not None:  # elsewhere it is a heading
        return hashes[1]
    if (start := text.rfind(_BOXED)) >= 0:
        return _braced(text[start + len(_BOXED) :])
    if said := _SAID.findall(text):
        sentence: str = re.split(r"\.(?:\s|$)", said[-1])[0]
        return sentence if len(sentence.split()) <= _SHORT else None
    return None


def _braced(text: str) -> str:
    """Up to the brace that closes what was open before."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if not depth:
            return text[:place]
    return text


def _number(text: str) -> str | None:
    """The number, written in one way, perhaps with a currency before it or a unit after it."""
    if len(text) > _LONGEST_NUMBER or (match := _AMOUNT.fullmatch(text)) is None:
        return None
    try:
        number = Decimal(match[1].replace(",", ""))
    except InvalidOperation:
        return None
    return format(number.normalize(), "f") + ("%" if match[2] == "%" else "")


def _normal_code(code: str) -> str:
    """Without comments and layout where it reads as Python, else without empty lines and trailing spaces."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return "\n".join(line.rstrip() for line in code.splitlines() if line.strip())
    blocks = {tokenize.INDENT: "{", tokenize.DEDENT: "}", tokenize.NEWLINE: "\n"}
    words = [blocks.get(each.type, each.string) for each in tokens if each.type not in _LAYOUT]
    return " ".join(words)
