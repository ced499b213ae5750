"""What the fleet is asked: GSM8K's questions and HumanEval's functions, and how each is put to a model."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side.ours import human_eval

_SHARED = Path(os.environ.get("HEADRACE_SHARED") or Path(__file__).parents[3] / "shared")
GSM8K = _SHARED / "data" / "eval" / "gsm8k_test_first660.jsonl.gz"

_GSM8K = (
    "{question}\n\nReason step by step, in short sentences with their arithmetic. "
    "End with '####' and the answer as a plain number."
)
_HUMAN_EVAL = (
    "Complete this Python function. Answer with the whole function in one block of code.\n\n```python\n{}```"
)


@dataclass(frozen=True)
class Question:
    """`prompt` is the user's message, `number` its place in its suite.

    `truth`: GSM8K's number, or the tests of HumanEval, whose `stub` is what is to be completed.
    """

    name: str
    suite: str
    prompt: str
    truth: str
    stub: str = ""
    number: int = 0
    max_tokens: int = 320


def gsm8k(path: Path = GSM8K) -> list[Question]:
    """Cobbe et al., 2021 (arXiv:2110.14168): in the file's order."""
    return [
        Question(
            f"gsm8k/{number}",
            "gsm8k",
            _GSM8K.format(question=line["question"]),
            line["answer"].rpartition("####")[2].strip().replace(",", ""),
            number=number,
        )
        for number, line in enumerate(_lines(path))
    ]


def humaneval(path: Path | None = None) -> list[Question]:
    """Chen et al., 2021 (arXiv:2107.03374)."""
    return [
        Question(
            line["task_id"],
            "humaneval",
            _HUMAN_EVAL.format(line["prompt"]),
            f"{line['test']}\ncheck({line['entry_point']})\n",
            line["prompt"],
            number,
        )
        for number, line in enumerate(_lines(path or human_eval()))
    ]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
