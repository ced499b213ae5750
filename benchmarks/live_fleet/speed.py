"""How fast each model is on this machine, from which its price follows; a few minutes of a quiet machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from live_fleet.ask import CONCURRENCY
from live_fleet.costs import Speed
from side_by_side.ours import Headrace
from side_by_side.work import Run


def measure(models: Sequence[str]) -> dict[str, Speed]:
    """Prefill and decode of as many sequences as questions are asked at a time."""
    threads = len(os.sched_getaffinity(0))
    speeds = {}
    for model in models:
        figures = Headrace().throughput(model, [CONCURRENCY], Run(f"live-{model}", threads, 600.0))
        speeds[model] = Speed(figures[f"prefill {CONCURRENCY}"], figures[f"decode {CONCURRENCY}"])
    return speeds


def write(path: Path, speeds: dict[str, Speed]) -> None:
    path.write_text(json.dumps({model: asdict(speed) for model, speed in speeds.items()}, indent=2) + "\n")


def read(path: Path) -> dict[str, Speed]:
    return {model: Speed(**speed) for model, speed in json.loads(path.read_text()).items()}
