"""Whether more records to learn from would help: how well chances tell answers apart, by their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.routing.train import train
from live_fleet.calibration import auc
from live_fleet.table import Rows, Table

_SHARES = (0.125, 0.25, 0.5, 1.0)
_DRAWS = 3
_FEWEST = 30


@dataclass(frozen=True)
class Learnt:
    """`auc`: of each model's chance from the prompt, learnt from so many records; means over draws."""

    records: int
    auc: tuple[float, ...]


def learning(table: Table, divisions: Sequence[tuple[Rows, Rows]]) -> list[Learnt]:
    """From parts of the records to learn from, up to all; over all divisions together."""
    found = []
    tested = np.concatenate([rows for _, rows in divisions])
    for share in _SHARES:
        counts = [round(share * len(rows)) for rows, _ in divisions]
        if min(counts) < _FEWEST:
            continue
        drawn = []
        for seed in range(_DRAWS if share < 1 else 1):
            parts = [_good(table, rows, of, share, seed) for rows, of in divisions]
            good = np.concatenate(parts)
            drawn.append([auc(good[:, m], table.scores[tested, m]) for m in range(len(table.models))])
        found.append(Learnt(round(float(np.mean(counts))), tuple(np.mean(drawn, axis=0).tolist())))
    return found


def _good(table: Table, rows: Rows, of: Rows, share: float, seed: int) -> NDArray[np.float64]:
    count = round(share * len(rows))
    part = np.sort(np.random.default_rng(seed).permutation(rows)[:count])
    return train(table.records(part)).estimates([table.questions[row].prompt for row in of])
