"""Records of how well models answered: read from a table, from lines of JSON, or from preferences in pairs.

However they come, they become one matrix: a row for each answered prompt, a column for each model, the score
of the answer between 0 and 1, and NaN where that model was not asked.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
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
    column whose first field that is not empty is a score is a model.
    Raises ConfigError, which names the file and the line.
    """
    rows = list(_rows(path))
    if not rows:
        raise ConfigError(f"{path}: holds no records")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if "prompt" not in columns:
        raise ConfigError(f"{path}: has no column `prompt`; it has {', '.join(columns)}")
    if models is not None and (not models or len(set(models)) < len(models)):
        raise ConfigError(f"expected models that differ, not {', '.join(models) or 'none'}")
    if {"model", "score"} <= set(columns):
        read = _long(path, rows, _scored)
    elif {"winner", "loser"} <= set(columns):
        read = _long(path, rows, _preference)
    else:
        return _wide(path, rows, columns, models)
    return read if models is None else _chosen(path, read, models)


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    if Path(path.stem if path.suffix == ".gz" else path.name).suffix in (".jsonl", ".ndjson", ".json"):
        for number, line in lines_of(path):
            yield _json_row(path, number, line)
        return
    csv.field_size_limit(2**30)
    table = csv.reader(io.StringIO(_text_of(path), newline=""))
    try:
        names = [name.strip() for name in next(table, [])]
        for row in filter(None, table):
            if any(row[len(names) :]):
                raise ConfigError(
                    f"{path}: line {table.line_num} has more fields than the {len(names)} that the first one "
                    "names; a text with commas needs quotes around it"
                )
            yield dict(zip(names, row, strict=False))
    except csv.Error as error:
        raise ConfigError(f"{path}: line {table.line_num}: {error}") from None


def lines_of(path: Path) -> Iterable[tuple[int, str]]:
    """The lines of a file that are not empty, and their numbers. Raises ConfigError."""
    for number, line in enumerate(_text_of(path).split("\n"), 1):
        if line.strip():
            yield number, line


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}: line {number} is no JSON object")
    return row


def _wide(
    path: Path, rows: list[dict[str, Any]], columns: list[str], models: Sequence[str] | None
) -> Records:
    if models is None:
        models = [name for name in columns if name != "prompt" and _holds_scores(rows, name)]
    for name in models:
        if name not in columns:
            raise ConfigError(f"{path}: has no column {name!r}; it has {', '.join(columns)}")
    if not models:
        raise ConfigError(f"{path}: no column holds scores between 0 and 1")
    scores = [
        [_score(path, number, name, row.get(name)) for name in models] for number, row in enumerate(rows, 1)
    ]
    prompts = [_text(path, number, "prompt", row) for number, row in enumerate(rows, 1)]
    return _answered(Records(tuple(prompts), tuple(models), np.array(scores, np.float64)))


_Scores = list[tuple[str, Any]]


def _long(
    path: Path, rows: list[dict[str, Any]], scores_of: Callable[[Path, int, dict[str, Any]], _Scores]
) -> Records:
    """One row for each prompt; of several scores of a model for it, the mean."""
    sums: dict[str, dict[str, list[float]]] = {}
    names: dict[str, None] = {}
    for number, row in enumerate(rows, 1):
        for model, score in scores_of(path, number, row):
            value = _score(path, number, "score", score)
            names[model] = None
            if not np.isnan(value):
                of_prompt = sums.setdefault(_text(path, number, "prompt", row), {})
                of_prompt.setdefault(model, []).append(value)
    scores = [[float(np.mean(of[name])) if name in of else np.nan for name in names] for of in sums.values()]
    if not scores:
        raise ConfigError(f"{path}: holds no scores")
    return Records(tuple(sums), tuple(names), np.array(scores, np.float64))


def _scored(path: Path, number: int, row: dict[str, Any]) -> _Scores:
    return [(_text(path, number, "model", row), row.get("score"))]


def _preference(path: Path, number: int, row: dict[str, Any]) -> _Scores:
    """A preference as two scores: 1 for the winner, 0 for the loser; with a true `tie`, a half for both."""
    tied = str(row.get("tie") or "").lower() in ("true", "1", "yes")
    won, lost = (0.5, 0.5) if tied else (1.0, 0.0)
    return [(_text(path, number, "winner", row), won), (_text(path, number, "loser", row), lost)]


def _chosen(path: Path, read: Records, models: Sequence[str]) -> Records:
    for name in models:
        if name not in read.models:
            raise ConfigError(f"{path}: says nothing of {name!r}; its models are {', '.join(read.models)}")
    scores = read.scores[:, [read.models.index(name) for name in models]]
    return _answered(Records(read.prompts, tuple(models), scores))


def _answered(records: Records) -> Records:
    """Those of which a score is known."""
    return records.take(np.flatnonzero(~np.isnan(records.scores).all(axis=1)))


def _text(path: Path, number: int, column: str, row: dict[str, Any]) -> str:
    value = row.get(column)
    if not isinstance(value, str) or (not value and column != "prompt"):
        raise ConfigError(f"{path}: record {number}: the {column} is no text")
    return value


def _holds_scores(rows: list[dict[str, Any]], name: str) -> bool:
    first = next((row[name] for row in rows if row.get(name) not in (None, "")), None)
    try:
        return not np.isnan(_score(Path(), 0, name, first))
    except ConfigError:
        return False


def _score(path: Path, number: int, column: str, value: Any) -> float:
    if value is None or value == "":
        return float("nan")
    words = {"true": 1.0, "false": 0.0}
    try:
        score = words[str(value).lower()] if str(value).lower() in words else float(value)
    except (TypeError, ValueError):
        score = float("inf")
    if score < 0 or score > 1:
        raise ConfigError(
            f"{path}: record {number}: {column} is {value!r:.60}, which is no score between 0 and 1"
        )
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
