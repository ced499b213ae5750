"""A picture of a simulation: how TTFT and TPOT are distributed, and what each replica computed over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.simulate.report import tpot, ttft
from headrace.simulate.run import Simulated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPANS = 60


def draw(simulated: Simulated, title: str, path: Path) -> None:
    """Writes the picture; `bench.serve.plot.check` has said that it can be."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    first, between, over_time = figure.subplots(1, 3)
    _distribution(first, "TTFT", [ttft(one) for one in simulated.served])
    _distribution(between, "TPOT", [value for one in simulated.served if (value := tpot(one)) is not None])
    end = max(one.first for one in simulated.served)
    for number in range(len(simulated.busy)):
        mine = [one for one in simulated.served if one.replica == number]
        tokens, edges = np.histogram(
            [one.first for one in mine],
            _SPANS,
            range=(0, end),
            weights=[one.input_len - one.cached for one in mine],
        )
        over_time.stairs(tokens / np.diff(edges), edges, label=f"replica {number}")
    over_time.set(title="Prompt tokens computed", xlabel="seconds", ylabel="tokens a second")
    over_time.legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path)


def _distribution(axes: Axes, name: str, seconds: list[float]) -> None:
    values = np.sort(np.asarray(seconds, dtype=np.float64)) * 1e3
    axes.plot(values, np.arange(1, len(values) + 1) / max(1, len(values)))
    axes.set(title=name, xlabel="milliseconds", ylabel="part of all values", ylim=(0, 1))
    axes.grid(alpha=0.2)
