"""What a prompt's form tells of its difficulty: lengths, digits, options, wording. Some fifty numbers.

Everything is counted on arrays of bytes, never letter by letter, so that a long prompt costs well under a
millisecond. This is for training, on many prompts; native/prompt_cues.cpp reads the same from the one prompt
that waits for its model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

HEAD, TAIL = 2000, 1000
"""Of a longer prompt these many first and last characters are read: its task is told at an end, mostly."""

_OPTION = re.compile(rb"^\(?[A-J][.)][ \t]", re.MULTILINE)
_MOST_OPTIONS = 6  # they are compared with each other
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WORD, _DIGIT, _UPPER, _LOWER, _SYMBOL, _HIGH = 1, 2, 4, 8, 16, 32
_PHRASES = (
    b"statement 1",
    b"all of the above",
    b"none of the above",
    b"which of the following",
    b"most likely",
    b"best ",
    b"how many",
    b"find the",
    b"according to",
    b" if ",
    b" i ",
    b"```",
    b"def ",
    b"write ",
    b"explain",
    b"translate",
    b"prove",
    b" not ",
)
_COMMON = (b"the", b"of", b"a", b"an", b"in", b"to", b"and", b"is", b"that", b"for")


def _classes() -> NDArray[np.uint8]:
    table = np.zeros(256, np.uint8)
    for byte in range(256):
        letter = bytes([byte])
        if byte >= 128:
            table[byte] = _WORD | _HIGH
        elif letter.isdigit():
            table[byte] = _WORD | _DIGIT
        elif letter.isupper():
            table[byte] = _WORD | _UPPER
        elif letter.islower():
            table[byte] = _WORD | _LOWER
        elif letter in b"+-*/=^<>|$\\{}[]%":
            table[byte] = _SYMBOL
    return table


_CLASSES = _classes()
_FOLD = np.arange(256, dtype=np.uint8)
_FOLD[65:91] += 32
_POWERS = np.cumprod(np.full(HEAD * 4 + TAIL * 4 + 1, _MULTIPLIER, np.uint64), dtype=np.uint64)


@dataclass(frozen=True)
class Scanned:
    """A prompt as arrays: its bytes as they are and in lower case, their classes, and where words lie."""

    raw: bytes
    folded: NDArray[np.uint8]
    classes: NDArray[np.uint8]
    starts: NDArray[np.intp]
    lengths: NDArray[np.intp]
    word_hashes: NDArray[np.uint64]


def what_is_read(prompt: str) -> bytes:
    """All of a prompt, or both its ends where it is longer than HEAD + TAIL characters."""
    if len(prompt) > HEAD + TAIL:
        prompt = prompt[:HEAD] + "\n" + prompt[-TAIL:]
    return prompt.encode("utf-8", "replace")


def scan(prompt: str) -> Scanned:
    """The bytes and words of a prompt, or of both its ends."""
    raw = what_is_read(prompt)
    letters = np.frombuffer(raw, np.uint8)
    classes = _CLASSES[letters]
    edges = np.flatnonzero(np.diff(np.concatenate(([0], classes & _WORD, [0])).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    folded = _FOLD[letters]
    return Scanned(raw, folded, classes, starts, ends - starts, _hash_words(folded, starts, ends))


def _hash_words(
    folded: NDArray[np.uint8], starts: NDArray[np.intp], ends: NDArray[np.intp]
) -> NDArray[np.uint64]:
    """A 64-bit polynomial hash of each word, without regard to case."""
    if not len(starts):
        return np.zeros(0, np.uint64)
    lengths = ends - starts
    inside = np.arange(lengths.sum()) + np.repeat(
        starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths
    )
    place = inside - np.repeat(starts, lengths)
    terms = (folded[inside].astype(np.uint64) + np.uint64(1)) * _POWERS[place]
    return np.add.reduceat(terms, np.concatenate(([0], np.cumsum(lengths)[:-1]))).astype(np.uint64)


def _hash_of(word: bytes) -> int:
    return int(_hash_words(np.frombuffer(word, np.uint8), np.array([0]), np.array([len(word)]))[0])


_COMMON_HASHES = np.array([_hash_of(word) for word in _COMMON], np.uint64)
_QUESTION_WORDS = [_hash_of(w) for w in (b"which", b"what", b"who", b"when", b"where", b"how", b"why")]


def cues(text: Scanned) -> Floats:
    """The numbers that describe a prompt's form, shape (CUES,)."""
    whole = len(text.raw)
    marks = [match.start() for match in islice(_OPTION.finditer(text.raw), _MOST_OPTIONS)]
    question = marks[0] if marks else whole
    return np.array(
        [
            *_sizes(text, question),
            *_characters(text, question),
            *_wording(text),
            *_options(text, marks),
            *_phrases(text, question),
        ],
        np.float64,
    )


def _share(classes: NDArray[np.uint8], kind: int) -> float:
    return np.count_nonzero(classes & kind) / (len(classes) + 1)


def _sizes(text: Scanned, question: int) -> list[float]:
    words = len(text.starts)
    asked = int(np.searchsorted(text.starts, question))
    distinct = len(set(text.word_hashes.tolist()))
    logs = np.log1p([len(text.raw), question, words, asked, distinct])
    return [*logs.tolist(), distinct / (words + 1)]


def _characters(text: Scanned, question: int) -> list[float]:
    kinds = (_DIGIT, _UPPER, _SYMBOL, _HIGH)
    marks = np.log1p([text.raw.count(mark) for mark in (b"\n", b". ", b",", b"(", b'"')])
    digits = np.count_nonzero(text.classes & _DIGIT)
    return [
        *(_share(text.classes, kind) for kind in kinds),
        _share(text.classes[question:], _DIGIT),
        float(np.log1p(digits)),
        *marks.tolist(),
    ]


def _wording(text: Scanned) -> list[float]:
    if not len(text.starts):
        return [0.0] * 9
    lengths = text.lengths
    first = text.classes[text.starts]
    words = len(lengths)
    long = np.count_nonzero(lengths > 9)
    asked = int(text.word_hashes[0])
    return [
        float(np.log(lengths.mean())),
        float(lengths.std()),
        long / words,
        float(np.log1p(long)),
        np.count_nonzero(lengths < 4) / words,
        np.count_nonzero(first & _UPPER) / words,
        np.count_nonzero(first & _DIGIT) / words,
        np.count_nonzero(text.word_hashes[:, None] == _COMMON_HASHES) / words,
        1.0 if asked == _QUESTION_WORDS[0] else 0.5 if asked in _QUESTION_WORDS else 0.0,
    ]


def _options(text: Scanned, marks: list[int]) -> list[float]:
    """Of the answers to choose from: how many, how long, how alike, how many are numbers."""
    if len(marks) < 2:
        return [float(len(marks)), *[0.0] * 7]
    bounds = [*marks, len(text.raw)]
    sizes = np.diff(bounds).clip(max=2000) - 3.0
    cuts = np.searchsorted(text.starts, bounds)
    words = [set(text.word_hashes[a + 1 : b].tolist()) for a, b in pairwise(cuts)]
    asked = set(text.word_hashes[: cuts[0]].tolist())
    alike = [len(one & other) / (len(one | other) + 1) for i, one in enumerate(words) for other in words[:i]]
    letters = [
        np.count_nonzero(text.classes[a + 2 : b] & (_LOWER | _UPPER)) <= 0.25 * (b - a - 2)
        for a, b in pairwise(bounds)
    ]
    return [
        float(len(marks)),
        float(np.log1p(sizes.mean().clip(0))),
        float(np.log1p(sizes.max().clip(0))),
        float(np.log1p(sizes.min().clip(0))),
        float(sizes.std() / (sizes.mean() + 1)),
        float(np.mean(alike)),
        float(np.mean([len(one & asked) / (len(one) + 1) for one in words])),
        float(np.mean(letters)),
    ]


def _phrases(text: Scanned, question: int) -> list[float]:
    folded = text.folded.tobytes()
    asked = text.raw[:question].rstrip()
    return [
        *(float(phrase in folded) for phrase in _PHRASES),
        float(b"?" in asked),
        float(b"_" in asked),
        float(asked.endswith(b":")),
        float(b"NOT" in asked or b"EXCEPT" in asked),
    ]


CUES = len(cues(scan("A question?")))
"""How many numbers `cues` gives."""
