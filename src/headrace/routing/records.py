"""Records of how well models answered: read from a table, from lines of JSON, or from preferences in pairs.

However they come, they become one matrix: a row for each answered prompt, a column for each model, the score
of the answer between 0 and 1, and NaN where that model was not asked.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Records:
    """Prompts, and the scores of `models` for them: shape (len(prompts), len(models)), in [0, 1] or NaN."""

    prompts: tuple[str, ...]
    models: tuple[str, ...]
    scores: Floats

    def __post_init__(self) -> None:
        assert self.scores.shape == (len(self.prompts), len(self.models))

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> Records:
        """The records of these rows, in this order."""
        return Records(tuple(self.prompts[row] for row in rows), self.models, self.scores[rows])


def read_records(path: Path, models: Sequence[str] | None = None) -> Records:
    """The records of a file: CSV, or JSON in lines (`.jsonl`, `.ndjson`); either may be compressed (`.gz`).

    A table has a column `prompt` and one for each model, or the columns `prompt`, `model` and `score`, or
    `prompt`, `winner` and `loser` (and perhaps `tie`). A score is a number between 0 and 1, or true or false;
    an empty field is an answer that is not known. `models` chooses columns and their order; without it, every
    column whose first field is a score is a model.
    Raises ConfigError, which names the file and the line.
    """
    rows = list(_rows(path))
    if not rows:
        raise ConfigError(f"{path}: holds no records")
    columns = rows[0].keys()
    if "prompt" not in columns:
        raise ConfigError(f"{path}: has no column `prompt`; it has {', '.join(columns)}")
    if {"model", "score"} <= columns:
        read = _long(path, ((row["prompt"], row["model"], row["score"]) for row in rows))
    elif {"winner", "loser"} <= columns:
        read = _long(path, (part for row in rows for part in _preference(row)))
    else:
        return _wide(path, rows, models)
    return read if models is None else _chosen(path, read, models)


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    if Path(path.stem if path.suffix == ".gz" else path.name).suffix in (".jsonl", ".ndjson"):
        for number, line in lines_of(path):
            yield _json_row(path, number, line)
        return
    csv.field_size_limit(2**30)
    yield from csv.DictReader(io.StringIO(_text_of(path), newline=""))


def lines_of(path: Path) -> Iterable[tuple[int, str]]:
    """The lines of a file that are not empty, and their numbers. Raises ConfigError."""
    for number, line in enumerate(_text_of(path).split("\n"), 1):
        if line.strip():
            yield number, line


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}: line {number} is no JSON object")
    return row


def _wide(path: Path, rows: list[dict[str, Any]], models: Sequence[str] | None) -> Records:
    if models is None:
        models = [name for name in rows[0] if name != "prompt" and _is_score(rows[0][name])]
    for name in models:
        if name not in rows[0]:
            raise ConfigError(f"{path}: has no column {name!r}; it has {', '.join(rows[0])}")
    if not models:
        raise ConfigError(f"{path}: no column holds scores between 0 and 1")
    scores = [[_score(path, number, row.get(name)) for name in models] for number, row in enumerate(rows, 1)]
    prompts = [_prompt(path, number, row.get("prompt")) for number, row in enumerate(rows, 1)]
    return Records(tuple(prompts), tuple(models), np.array(scores, np.float64))


def _long(path: Path, triples: Iterable[tuple[Any, Any, Any]]) -> Records:
    """One row for each prompt; of several scores of a model for it, the mean."""
    sums: dict[str, dict[str, list[float]]] = {}
    names: dict[str, None] = {}
    for number, (prompt, model, score) in enumerate(triples, 1):
        value = _score(path, number, score)
        names[str(model)] = None
        if not np.isnan(value):
            sums.setdefault(_prompt(path, number, prompt), {}).setdefault(str(model), []).append(value)
    scores = [[float(np.mean(of[name])) if name in of else np.nan for name in names] for of in sums.values()]
    if not scores:
        raise ConfigError(f"{path}: holds no scores")
    return Records(tuple(sums), tuple(names), np.array(scores, np.float64))


def _preference(row: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """A preference as two scores: 1 for the winner, 0 for the loser; with a true `tie`, a half for both."""
    tied = str(row.get("tie") or "").lower() in ("true", "1", "yes")
    won, lost = (0.5, 0.5) if tied else (1.0, 0.0)
    return [(row["prompt"], row["winner"], won), (row["prompt"], row["loser"], lost)]


def _chosen(path: Path, read: Records, models: Sequence[str]) -> Records:
    for name in models:
        if name not in read.models:
            raise ConfigError(f"{path}: says nothing of {name!r}; its models are {', '.join(read.models)}")
    scores = read.scores[:, [read.models.index(name) for name in models]]
    known = np.flatnonzero(~np.isnan(scores).all(axis=1))
    return Records(read.prompts, tuple(models), scores).take(known)


def _prompt(path: Path, number: int, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{path}: record {number}: the prompt is no text")
    return value


def _is_score(value: Any) -> bool:
    try:
        return not np.isnan(_score(Path(), 0, value))
    except ConfigError:
        return False


def _score(path: Path, number: int, value: Any) -> float:
    if value is None or value == "":
        return float("nan")
    words = {"true": 1.0, "false": 0.0}
    try:
        score = words[str(value).lower()] if str(value).lower() in words else float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{path}: record {number}: {value!r} is no score") from None
    if not 0 <= score <= 1:
        raise ConfigError(f"{path}: record {number}: the score {value} is not between 0 and 1")
    return score


def split(prompts: Sequence[str], first: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Two sets of rows at random: `first` of them, and the rest. Equal prompts stay on one side, so that the
    first set may be larger by a few."""
    groups: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(row)
    lists = list(groups.values())
    one: list[int] = []
    other: list[int] = []
    for index in np.random.default_rng(seed).permutation(len(lists)):
        (one if len(one) < first else other).extend(lists[index])
    return np.array(one, np.intp), np.array(other, np.intp)
