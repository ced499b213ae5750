"""OpenVINO GenAI: its pipeline with continuous batching, in a process of its own environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.bench.throughput import prompts
from headrace.models.registry import resolve
from side_by_side.environment import Environment
from side_by_side.process import Command, PeerError, output_of
from side_by_side.work import Figures, Load, Run

PACKAGES = ("openvino==2026.4.1", "openvino-genai==2026.4.1.0")
DRIVER = Path(__file__).parent / "drivers" / "openvino_throughput.py"


class OpenVino:
    name = "OpenVINO"

    def __init__(self) -> None:
        self._environment = Environment("openvino")

    def prepare(self) -> str:
        if not self._environment.installed:
            self._environment.create()
            self._environment.install(PACKAGES)
            self._environment.finish()
        return self._environment.version("openvino-genai")

    def throughput(self, model: str, batches: Sequence[int], run: Run) -> Figures:
        work = {
            "model": str(resolve(model).path),
            "threads": run.threads,
            "batches": list(batches),
            "prompts": prompts(max(batches)),
        }
        command: Command = [self._environment.python, DRIVER]
        output = output_of(command, run.log, run.seconds, stdin=json.dumps(work))
        figures: Figures = json.loads(output)
        return figures

    def long_prompt(self, model: str, run: Run) -> Figures:
        raise PeerError("not measured")

    def at_depth(self, model: str, depth: int, batches: Sequence[int], run: Run) -> Figures:
        raise PeerError("not measured")

    def serving(self, model: str, load: Load, run: Run) -> AbstractContextManager[str]:
        raise PeerError("has no server")
