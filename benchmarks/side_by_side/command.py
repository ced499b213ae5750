"""A benchmark of processes of our own, as a command."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from side_by_side.process import PeerError


def on_two_cores(
    name: str,
    arguments: argparse.Namespace,
    run: Callable[[argparse.Namespace], Any],
    table: Callable[[Any], Iterable[str]],
) -> None:
    """Runs it there, and prints its report: as JSON where `arguments.json` says so, else as a table."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    try:
        report = run(arguments)
    except PeerError as error:
        sys.exit(f"{name}: {error}")
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(table(report)))
