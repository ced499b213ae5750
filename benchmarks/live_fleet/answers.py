"""Answers that models gave, kept as JSON in lines, so that an interrupted run goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """`logprobs`: of the answer's tokens, whose texts are `tokens`; `seconds`: from sent to answered."""

    question: str
    model: str
    sample: int
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seconds: float
    tokens: list[str]
    logprobs: list[float]


def path_of(folder: Path, suite: str, model: str) -> Path:
    return folder / f"{suite}-{model}.jsonl"


def append(path: Path, answer: Answer) -> None:
    """One line, written at once."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(answer)) + "\n")


def read(path: Path) -> Iterator[Answer]:
    """All answers; none where there is no file. A last line that was cut short is left out."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield Answer(**json.loads(line))
