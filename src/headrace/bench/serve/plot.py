"""A picture of a run: how TTFT and ITL are distributed, and the throughput over time."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.bench.serve.metrics import ttft
from headrace.bench.serve.record import Record
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
_MOST_BINS = 100


def check(path: Path) -> None:
    """Raises ConfigError where no plot could be written there; to be asked before the load is put on."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot: {path} must end in {' or '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot: there is no folder {path.absolute().parent}")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib; `pip install 'headrace[plot]'` brings it")


def draw(records: Sequence[Record], title: str, path: Path) -> None:
    """Writes the picture of the answered requests, of which there is at least one."""
    from matplotlib.figure import Figure

    answered = [record for record in records if record.failure is None]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    first, between, over_time = figure.subplots(1, 3)
    _distribution(first, "TTFT", [ttft(record) for record in answered])
    _distribution(between, "ITL", np.concatenate([np.diff(record.chunk_times) for record in answered]))
    seconds, rates = throughput(answered)
    over_time.stairs(rates, seconds, fill=True)
    over_time.set(title="Throughput", xlabel="seconds", ylabel="output tokens a second")
    figure.suptitle(title)
    figure.savefig(path)


def _distribution(axes: Axes, name: str, seconds: ArrayLike) -> None:
    """The part of all values up to each, which hides no tail as a histogram's bins would."""
    values = np.sort(np.asarray(seconds, dtype=np.float64)) * 1e3
    axes.plot(values, np.arange(1, len(values) + 1) / max(1, len(values)))
    axes.set(title=name, xlabel="milliseconds", ylabel="part of all values", ylim=(0, 1))
    for part in (0.5, 0.99):
        axes.axhline(part, color="grey", linewidth=0.5, linestyle=":")
    axes.grid(alpha=0.2)


def throughput(records: Sequence[Record]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges of equal spans in seconds since the first request, and the output tokens a second in each.

    An answer's tokens are taken to come evenly with its pieces.
    """
    began = min(record.started for record in records)
    times = np.concatenate([_pieces(record) for record in records]) - began
    weights = np.concatenate(
        [np.full(len(p), record.output_tokens / len(p)) for record in records for p in [_pieces(record)]]
    )
    spans = max(1, min(_MOST_BINS, int(times.max() / 0.25)))
    tokens, edges = np.histogram(times, spans, range=(0, times.max()), weights=weights)
    return edges, tokens / np.diff(edges)


def _pieces(record: Record) -> NDArray[np.float64]:
    return np.array(record.chunk_times or [record.ended])
