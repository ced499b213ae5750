"""Recorded traffic: when requests came, how long they were, and which prefixes they shared.

Two formats. Azure's LLM inference traces (https://github.com/Azure/AzurePublicDataset) are CSV: time of
arrival, context tokens, generated tokens. Mooncake's (Qin et al., FAST'25) are JSON lines with `hash_ids`:
one id for each block of 512 tokens of the prompt; requests whose ids begin alike share that prefix.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

import msgspec

from headrace.errors import ConfigError

BLOCK_TOKENS = 512
"""Tokens that one of Mooncake's ids stands for."""
_SECONDS = slice(0, 19)  # of "2023-11-16 18:17:03.9799600"


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One line of a trace."""

    arrival: float
    """Seconds since the first request."""
    input_len: int
    output_len: int
    blocks: tuple[int, ...] = ()
    """Ids of the prompt's blocks, the last one partly used; empty where the trace has none."""


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    """Milliseconds."""
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_trace(path: Path) -> Iterator[TracedRequest]:
    """The trace's requests in order, read as they are asked for. Its name ends in .csv or .jsonl, and .gz
    where it is compressed.

    A request without a prompt or an answer is given one token of it. Raises ConfigError that says how
    far it was read.
    """
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind not in ("csv", "jsonl"):
        raise ConfigError(f"--trace: {path} is neither .csv, .jsonl, nor one of them compressed as .gz")
    number = 0
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            lines = _azure(file) if kind == "csv" else map(_mooncake, file)
            first: float | None = None
            for arrival, asked in lines:
                first = arrival if first is None else first
                yield TracedRequest(max(0.0, arrival - first), *asked)
                number += 1
    except (ValueError, KeyError, TypeError, EOFError, OSError) as error:
        raise ConfigError(f"--trace: {path}, after {number} requests: {error}") from error


_Asked = tuple[int, int, tuple[int, ...]]


def _azure(file: IO[str]) -> Iterator[tuple[float, _Asked]]:
    for row in csv.DictReader(file):
        when = row["TIMESTAMP"]
        arrival = datetime.fromisoformat(when[_SECONDS]).timestamp() + float("0" + when[_SECONDS.stop :])
        yield arrival, (max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"])), ())


def _mooncake(line: str) -> tuple[float, _Asked]:
    read = msgspec.json.decode(line, type=_MooncakeLine)
    if len(read.hash_ids) * BLOCK_TOKENS < read.input_length:
        raise ValueError(f"{read.input_length} tokens need more than {len(read.hash_ids)} hash_ids")
    return read.timestamp / 1e3, (max(1, read.input_length), max(1, read.output_length), tuple(read.hash_ids))
