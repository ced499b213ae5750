"""Sets up other engines, runs them and Headrace in turn on the same work, and prints how they compare.

    make peers                                     everything, into docs/benchmarks.*
    make peers ARGS="--only smollm2 --peers llama.cpp --output build/peers/report"

At their first use the peers come from the package index, each into an environment of its own under
build/peers. One that cannot be installed is reported as absent. The processes are confined to as many cores
as there are threads, servers listen on 127.0.0.1, and each has a time limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from side_by_side import machine, plot
from side_by_side.cases import CASES
from side_by_side.llama_cpp import LlamaCpp
from side_by_side.openvino import OpenVino
from side_by_side.ours import Headrace
from side_by_side.process import PeerError, adopt_orphans
from side_by_side.report import Result, markdown, table
from side_by_side.vllm import Vllm
from side_by_side.work import Case, Engine, Run

PEERS = (LlamaCpp, OpenVino, Vllm)
DOCS = Path(__file__).parents[1] / "docs" / "benchmarks"
CALM_LOAD, CALM_SECONDS = 0.7, 600.0


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("peers: told to end"))  # its processes end with it
    adopt_orphans()
    engines, absent = prepare(arguments.peers)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    cases = [case for case in CASES if (case.name in arguments.only if arguments.only else case.default)]
    about: dict[str, Any] = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "threads": arguments.threads,
        "machine": machine.describe(),
        "load": machine.wait_until_calm(CALM_LOAD, arguments.wait),
        "commit": commit(),
        "versions": {name: version for name, (_, version) in engines.items()},
        "absent": absent,
    }
    results = []
    for case in cases:
        case = replace(case, rounds=arguments.rounds or case.rounds)
        taking_part = [engines[name][0] for name in case.engines if name in engines]
        results.append(measure(case, taking_part, arguments.threads))
        print("\n".join([f"\n{case.title}\n", *table(results[-1])]), flush=True)
        # After each case, so that a run that is interrupted leaves what it has.
        write(arguments.output, results, about)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Headrace with other engines on this machine.")
    names, cases = [peer.name for peer in PEERS], [case.name for case in CASES]
    parser.add_argument("--only", type=_list_of(cases), help=f"cases, of {', '.join(cases)}")
    parser.add_argument("--peers", type=_list_of(names), default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, help="rounds of each case, instead of its own number")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--wait", type=float, default=CALM_SECONDS, help="seconds to wait for a load below 0.7"
    )
    parser.add_argument("--output", type=Path, default=DOCS, help="where to write, without the suffix")
    return parser.parse_args()


def prepare(peers: Iterable[str]) -> tuple[dict[str, tuple[Engine, str]], dict[str, str]]:
    """The engines that are there with their versions, by name; and why others are not."""
    there: dict[str, tuple[Engine, str]] = {}
    absent: dict[str, str] = {}
    engines: list[Engine] = [Headrace(), *(peer() for peer in PEERS if peer.name in peers)]
    for engine in engines:
        with reporting(absent, engine.name):
            there[engine.name] = engine, engine.prepare()
    return there, absent


@contextlib.contextmanager
def reporting(failures: dict[str, str], name: str) -> Iterator[None]:
    """Notes under that name, and says, why something could not be done, and goes on."""
    try:
        yield
    except PeerError as error:
        failures[name] = str(error)
        print(f"peers: {name} is left out: {error}", file=sys.stderr, flush=True)


def measure(case: Case, engines: Sequence[Engine], threads: int) -> Result:
    """All rounds of a case, the engines taking turns; one that fails is left out from then on.

    A round that others on the machine disturbed is run again, until there have been twice as many.
    """
    result = Result(case)
    for number in range(1, 2 * case.rounds + 1):
        for engine in engines:
            if engine.name in result.failures or len(result.calm(engine.name)) >= case.rounds:
                continue
            start, bystanders = time.monotonic(), machine.Bystanders()
            run = Run(f"{case.name}-{engine.name}-{number}", threads, case.seconds, case.isa)
            with reporting(result.failures, engine.name):
                figures = case.measure(engine, run)
                took, figures["others"] = time.monotonic() - start, bystanders.share()
                result.rounds.setdefault(engine.name, []).append(figures)
                said = "  ".join(f"{row.figure} {figures[row.figure]:.1f}" for row in case.rows)
                others = f"others took {figures['others']:.0%} of the machine"
                about = f"{case.name} {number} {engine.name} ({took:.0f} s, {others})"
                print(f"{about}: {said}", file=sys.stderr, flush=True)
    return result


def write(output: Path, results: Sequence[Result], about: dict[str, Any]) -> None:
    """The raw figures, the page and the plot."""
    output.parent.mkdir(parents=True, exist_ok=True)
    raw = {**about, "results": [result.as_json() for result in results]}
    picture = output.with_suffix(".svg")
    output.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    picture.write_text(plot.svg(results), encoding="utf-8")
    output.with_suffix(".md").write_text(markdown(results, about, picture.name), encoding="utf-8")


def commit() -> str:
    """The commit that is measured, where that can be known."""
    command = ["git", "-C", str(DOCS.parents[1]), "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _list_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(known)}")
        return chosen

    return parse


if __name__ == "__main__":
    main()
