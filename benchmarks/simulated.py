"""How near `headrace simulate` comes to four real replicas on this machine, under a scaled trace.

    python benchmarks/simulated.py azure_2023_conv.csv

The trace's lengths are divided, and it is sped up to a part of what the simulated fleet can do. Then:
step times are measured, the trace is played on a real server by `headrace bench serve`, and step times are
measured again. What others disturbed is measured anew, and a round in which step times changed is told of.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from headrace.bench.serve.own_server import own_server
from headrace.bench.serve.traces import read_trace
from side_by_side.others import Others

Result = dict[str, Any]
MOST_CHANGE = 0.1
"""Between two calibrations, in the rate of requests that they say can be answered."""
CACHE_TOKENS = 16384


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [measured(arguments, Path(folder)) for _ in range(arguments.rounds)]
    print(json.dumps(rounds, indent=None if arguments.json else 2))
    if any(abs(one["drift"]) > MOST_CHANGE for one in rounds):
        raise SystemExit("simulated: step times changed meanwhile; measure again")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The simulator beside real replicas.")
    parser.add_argument("trace", type=Path, help="Azure's CSV or Mooncake's JSONL")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--divide", type=float, default=4, help="the trace's lengths by so much")
    parser.add_argument("--share", type=float, default=0.65, help="of the load that saturates the fleet")
    parser.add_argument("--seconds", type=float, default=60, help="of load, about")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--attempts", type=int, default=20, help="at each measurement, until nobody disturbs")
    parser.add_argument("--others", type=float, default=0.1, help="most that others may use of the machine")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measured(arguments: argparse.Namespace, folder: Path) -> Result:
    """One round: the real figures, the simulated ones, and by what part they differ."""
    trace = folder / "trace.csv"
    serve = ["--model", arguments.model, "--replicas", str(arguments.replicas), "--threads", "1"]
    with own_server([*serve, "--cache-tokens", str(CACHE_TOKENS)]) as url:
        before = calibrated(arguments, folder / "before.json")
        count = write_scaled(arguments, before, trace)
        speed = capacity(arguments, before, trace)["saturation_rate_scale"] * arguments.share
        told(f"{count} requests, {speed:.3g} times as fast as recorded")
        play = ("bench", "serve", "--url", url, "--trace", trace, "--speed", speed, "--json")
        real, taken = undisturbed(arguments, *play)
        after = calibrated(arguments, folder / "after.json")
    rates = [capacity(arguments, file, trace)["saturation_requests_per_s"] for file in (before, after)]
    both = folder / "both.json"
    both.write_text(json.dumps(mean_of(before, after)))
    simulated = simulate(arguments, both, trace, "--rate-scale", speed)
    return {
        "step_times": json.loads(both.read_text()),
        "requests": real["completed"],
        "speed": round(speed, 4),
        "others": round(taken, 4),
        "drift": round(rates[1] / rates[0] - 1, 4),
    } | compared(real, simulated)


def undisturbed(arguments: argparse.Namespace, *command: object) -> tuple[Result, float]:
    """What a command measures while others hardly use the machine, and the part of it that they used."""
    for _ in range(arguments.attempts):
        while used_lately() > arguments.others:
            pass
        others = Others()
        found, taken = headrace(*command), others.share()
        told(f"{command[1]}: others used {taken:.1%} of the machine")
        if taken <= arguments.others:
            return found, taken
    raise SystemExit("simulated: the machine was busy with something else in every attempt")


def used_lately() -> float:
    others = Others()
    time.sleep(1)
    return others.share()


def compared(real: Result, simulated: Result) -> Result:
    """The measures of both, and how far the second is from the first."""
    means = {
        name: (real[name]["mean"], simulated[name]["mean"]) for name in ("ttft_ms", "tpot_ms", "latency_ms")
    }
    rates = {name: (real[name], simulated[name]) for name in ("requests_per_s", "output_tokens_per_s")}
    return {
        name: {"real": a, "simulated": b, "difference": round(b / a - 1, 4)}
        for name, (a, b) in (means | rates).items()
    }


def calibrated(arguments: argparse.Namespace, file: Path) -> Path:
    """Step times, written to the file."""
    options = ("--threads", 1, "--workers", arguments.replicas, "--json")
    found, _ = undisturbed(arguments, "bench", "step-model", arguments.model, *options)
    file.write_text(json.dumps(found))
    told(file.read_text())
    return file


def mean_of(*files: Path) -> Result:
    """Step times between those of two calibrations."""
    first, second = (json.loads(file.read_text()) for file in files)
    numbers = {name: fmean((first[name], second[name])) for name in ("base", "row", "context")}
    slowdown = [fmean(pair) for pair in zip(first["slowdown"], second["slowdown"], strict=True)]
    return numbers | {"slowdown": slowdown}


def write_scaled(arguments: argparse.Namespace, step_times: Path, trace: Path) -> int:
    """So many requests of the trace as last about as long as asked for; returns how many."""
    count = 100
    for _ in range(2):  # how many that are depends on how long they are
        write_csv(arguments, trace, count)
        rate = capacity(arguments, step_times, trace)["saturation_requests_per_s"]
        count = round(rate * arguments.share * arguments.seconds)
    write_csv(arguments, trace, count)
    return count


def write_csv(arguments: argparse.Namespace, trace: Path, count: int) -> None:
    with trace.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        for number, request in enumerate(read_trace(arguments.trace)):
            if number == count:
                return
            minutes, seconds = divmod(request.arrival, 60)
            when = f"2023-11-16 {int(minutes // 60):02}:{int(minutes % 60):02}:{seconds:010.7f}"
            lengths = (request.input_len, request.output_len)
            writer.writerow([when, *(max(1, round(length / arguments.divide)) for length in lengths)])


def capacity(arguments: argparse.Namespace, step_times: Path, trace: Path) -> Result:
    return simulate(arguments, step_times, trace, "--saturation")


def simulate(arguments: argparse.Namespace, step_times: Path, trace: Path, *options: object) -> Result:
    fleet = ("--replicas", arguments.replicas, "--cache-tokens", CACHE_TOKENS)
    return headrace("simulate", "--step-model", step_times, "--trace", trace, *fleet, *options, "--json")


def headrace(*arguments: object) -> Result:
    """The object that a command prints."""
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    result: Result = json.loads(printed)
    return result


def told(line: str) -> None:
    print(f"simulated: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
